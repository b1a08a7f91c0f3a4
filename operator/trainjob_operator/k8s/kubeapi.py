"""Raw JSON calls to a Kubernetes API server: `Api`, over the asyncio client of the `kubernetes` package.

Called by `kube.py` and by the modules around it that speak to the API (lease, certificates, tokens, routing). No typed
models: a round trip through them loses fields. Nothing here retries, and nothing here knows what a TrainJob is.
"""

from __future__ import annotations

import json
import os
import re
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
import yaml
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config import ConfigException, load_kube_config
from kubernetes.aio.config.incluster_config import InClusterConfigLoader

from trainjob_api import contract
from trainjob_operator.cluster import ClusterError, Conflict, Manifest, NotFound, NotServed, Rejected, Unavailable
from trainjob_operator.k8s.lean import without_managed_fields

TIMEOUT_S = 30.0
"""For one call, from the connection to the last byte of the answer."""
CONNECT_TIMEOUT_S = 5.0
RETRY_AFTER_MOST_S = 120.0
"""No longer is waited, whatever the answer asks for."""
PAGE = 250
"""Objects of one page of a list: parsed, a page of pods takes some ten MiB."""
LISTS_AT_MOST = 3
"""A list of which the server has forgotten the rest is begun anew so often, in all."""
SERVICE_ACCOUNT_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where a pod finds its token and the cluster's CA."""

JSON = "application/json"
_STATUS = "Status"
"""Kind of the answer to what was refused, or removed, or to a subresource's POST."""
MERGE_PATCH = "application/merge-patch+json"

_UNUSABLE = (ConfigException, OSError, ValueError, yaml.YAMLError, TypeError, KeyError, AttributeError)
"""What the client's loader raises for a file that is no kubeconfig: it trusts its shape."""

Manifests = list[Manifest]

OnCall = Callable[[str, str, int, float], None]
"""(method, path, HTTP status or 0 when no answer came, seconds)"""

_SEGMENT = re.compile(r"[a-z0-9A-Z]([-a-z0-9A-Z_.:]*[a-z0-9A-Z])?")


@dataclass(frozen=True)
class Connection:
    """What another client (kopf) needs to speak to the same server as the same identity."""

    server: str
    ssl_context: ssl.SSLContext
    authorization: str | None = field(repr=False)
    """Value of the header as it is now: tokens rotate, so ask anew for each request."""


class Expired(Unavailable):
    """410: the version that was asked for, or the rest of a list, is too old for the server to know."""


class Api:
    """One API server, one identity. `connect` makes it; `close` it at the end."""

    def __init__(self, configuration: Configuration, timeout_s: float = TIMEOUT_S) -> None:
        self.on_call: OnCall | None = None
        """Told of every request when it is over."""
        self.fence: Callable[[], None] | None = None
        """Called when the first byte of a request that may change something is about to be written, however long it
        waited before: what it raises, the call raises, and nothing goes out.
        """
        self._dated: tuple[datetime, float] | None = None
        """What the last answer was dated, and our monotonic clock then."""
        self._configuration = configuration
        trace = aiohttp.TraceConfig()
        trace.on_request_headers_sent.append(self._about_to_send)
        trace.on_request_redirect.append(_sent_elsewhere)
        configuration.trace_configs = [trace]
        # From Python 3.13 on TLS is strict by itself, for authorities of the world: what it asks for (key usage, key
        # identifiers) is left out of some clusters' own.
        configuration.disable_strict_ssl_verification = bool(configuration.ssl_ca_cert or configuration.ca_cert_data)
        self._rest = RESTClientObject(configuration)
        connect_s = min(CONNECT_TIMEOUT_S, timeout_s)
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, connect=connect_s, sock_connect=connect_s)

    @classmethod
    async def connect(cls, *, kubeconfig: str | None = None, timeout_s: float = TIMEOUT_S) -> Api:
        """The named kubeconfig, else the pod's service account, else KUBECONFIG or ~/.kube/config. Makes no call.

        Raises Rejected when no configuration is found or it cannot be used.
        """
        configuration = Configuration()
        configuration.retries = None
        in_cluster = kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ
        try:
            if in_cluster:
                _use_service_account(configuration)
            else:
                await _use_kubeconfig(configuration, kubeconfig)
            return cls(configuration, timeout_s)
        except _UNUSABLE as error:
            source = (
                "the pod's service account" if in_cluster else f"the kubeconfig {kubeconfig or _default_kubeconfig()}"
            )
            why = " ".join(str(error).split())
            raise Rejected(
                f"no API server to talk to: {source} cannot be used: {why}; name another with --kubeconfig or "
                "KUBECONFIG"
            ) from error

    @property
    def server(self) -> str:
        """Its URL."""
        return str(self._configuration.host)

    def shows(self) -> datetime | None:
        """What the API server's clock shows, to a second or two; None: no answer has told yet."""
        return None if self._dated is None else self._dated[0] + timedelta(seconds=time.monotonic() - self._dated[1])

    async def connection(self) -> Connection:
        """Server, TLS and credentials as they are now."""
        return Connection(self.server, self._rest.ssl_context, await self._bearer())

    async def close(self) -> None:
        """Close the connections."""
        await self._rest.close()

    # --- Verbs: a path such as "/api/v1/namespaces/x/pods" ------------------------------------------------------------

    async def get(self, path: str) -> Manifest:
        """GET of an object."""
        return _an_object(path, await self._call("GET", path))

    async def document(self, path: str) -> Manifest:
        """GET of what is no object of the API: versions, schemas, keys."""
        return await self._call("GET", path)

    async def page(self, path: str, params: Mapping[str, str]) -> Manifests:
        """The first items of a list; `params` say how many."""
        return _items(path, await self._call("GET", path, params=params))

    async def list(
        self, path: str, params: Mapping[str, str] | None = None, kept: Callable[[Manifest], Manifest] | None = None
    ) -> Manifests:
        """All items, as of one moment not before this call, without their managedFields; page by page. `kept`: what of
        each is to stay when the next page comes.
        """
        items: Manifests = []
        async for number, page in self._pages(path, params):
            if number == 0:
                items.clear()
            items += page if kept is None else map(kept, page)
        return items

    async def pages(self, path: str, params: Mapping[str, str] | None = None) -> AsyncIterator[Manifests]:
        """The same, page by page: what is not kept need not fit into memory. Where the server has forgotten the rest
        of a list, all come anew: some twice, as they are then, and some that are gone.
        """
        async for _, page in self._pages(path, params):
            yield page

    async def _pages(self, path: str, params: Mapping[str, str] | None) -> AsyncIterator[tuple[int, Manifests]]:
        """With their numbers; after an expired page the list begins with number 0 again."""
        number, begun, following = 0, 1, ""
        while True:
            asked = {**(params or {}), "limit": str(PAGE), **({"continue": following} if following else {})}
            try:
                page = await self._call("GET", path, params=asked, lean=True)
            except Expired:
                if not following or begun >= LISTS_AT_MOST:
                    raise
                number, begun, following = 0, begun + 1, ""
                continue
            yield number, _items(path, page)
            before, following = following, (page.get("metadata") or {}).get("continue") or ""
            if not following:
                return
            if following == before:
                raise _in_its_place(f"{path}: a list that goes on where it has been", following)
            number += 1

    async def create(self, path: str, body: Manifest, params: Mapping[str, str] | None = None) -> Manifest:
        """POST to a collection (or a subresource such as .../token)."""
        return _an_object(path, await self._call("POST", path, body, params=params), or_status=True)

    async def merge_patch(self, path: str, body: Manifest) -> Manifest:
        """PATCH with a JSON merge patch; with `metadata.resourceVersion` in the body only that version is patched,
        else Conflict.
        """
        return _an_object(path, await self._call("PATCH", path, body, content_type=MERGE_PATCH))

    async def replace(self, path: str, body: Manifest) -> Manifest:
        """PUT; with `metadata.resourceVersion` in the body only that version is replaced, else Conflict."""
        return _an_object(path, await self._call("PUT", path, body))

    async def delete(self, path: str, body: Manifest | None = None) -> Manifest:
        """DELETE; the body is a DeleteOptions."""
        return _an_object(path, await self._call("DELETE", path, body), or_status=True)

    # --- Inside -------------------------------------------------------------------------------------------------------

    async def _call(
        self,
        method: str,
        path: str,
        body: Manifest | None = None,
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = JSON,
        lean: bool = False,
    ) -> Manifest:
        url = f"{self.server}{path}{'?' + urlencode(params) if params else ''}"
        begun = time.monotonic()
        status = 0
        try:
            headers = await self._headers(content_type)
            answer = await self._rest.request(method, url, headers=headers, body=body, _request_timeout=self._timeout)
            self._note_date(answer.headers.get("Date", ""))
            content = await answer.read()
            status, retry_after = answer.status, answer.headers.get("Retry-After", "")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Unavailable(_no_answer(method, self.server, path, error, time.monotonic() - begun)) from error
        finally:
            if self.on_call is not None:
                self.on_call(method, path, status, time.monotonic() - begun)
        if status >= 300:
            raise _refusal(method, path, status, content, retry_after)
        return _parsed(method, path, without_managed_fields(content) if lean else content)

    def _note_date(self, date: str) -> None:
        try:
            told = parsedate_to_datetime(date)
        except (ValueError, OverflowError):
            return  # something between here and the API server leaves it out
        self._dated = (told if told.tzinfo is not None else told.replace(tzinfo=UTC), time.monotonic())

    async def _about_to_send(
        self, session: aiohttp.ClientSession, context: object, request: aiohttp.TraceRequestHeadersSentParams
    ) -> None:
        if self.fence is not None and request.method != "GET":
            self.fence()

    async def _headers(self, content_type: str) -> dict[str, str]:
        headers = {"Accept": f"{JSON}, */*", "Content-Type": content_type, "User-Agent": contract.MANAGED_BY}
        bearer = await self._bearer()
        if bearer:
            headers["Authorization"] = bearer
        return headers

    async def _bearer(self) -> str | None:
        found = await self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        return None if found is None else str(found)


async def _sent_elsewhere(
    session: aiohttp.ClientSession, context: object, request: aiohttp.TraceRequestRedirectParams
) -> None:
    """No API server does that; a POST would arrive there as a GET, and its answer would count as that to the POST."""
    raise aiohttp.ClientError(f"the answer is {request.response.status}, a redirect, which no API server sends")


def segment(name: str) -> str:
    """A name as a part of a path. Raises NotFound for one that no object can have: it would lead to another path."""
    if not _SEGMENT.fullmatch(name):
        raise NotFound(f"no object has the name {name!r:.80}")
    return quote(name, safe=":")


# --- Configuration ----------------------------------------------------------------------------------------------------


def _use_service_account(configuration: Configuration) -> None:
    token = Path(SERVICE_ACCOUNT_FOLDER) / "token"
    loader = InClusterConfigLoader(
        token_filename=str(token), cert_filename=str(token.with_name("ca.crt")), try_refresh_token=False
    )
    loader.load_and_set(configuration)

    def read_again(of: Configuration) -> None:
        # The kubelet changes the file long before the token in it ends; reading costs less than knowing when.
        try:
            of.api_key["BearerToken"] = f"Bearer {token.read_text().strip()}"
        except OSError:
            return  # the one we have may still be good; if not, the answer is 401

    configuration.refresh_api_key_hook = read_again  # type: ignore[assignment]


def _default_kubeconfig() -> str:
    return os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")


async def _use_kubeconfig(configuration: Configuration, kubeconfig: str | None) -> None:
    # Persisting would write refreshed tokens into the user's file.
    await load_kube_config(
        config_file=kubeconfig or _default_kubeconfig(), client_configuration=configuration, persist_config=False
    )


# --- Answers ----------------------------------------------------------------------------------------------------------


def _parsed(method: str, path: str, content: bytes) -> Manifest:
    try:
        document: Any = json.loads(content)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise _in_its_place(f"{method} {path}: the answer is no JSON object", content)
    return document


def _an_object(path: str, answer: Manifest, or_status: bool = False) -> Manifest:
    """The API says of each object what it is. Raises Unavailable for what does not: nothing is known of what was asked,
    nor whether it was done. `or_status`: it may be the word that it was done.
    """
    if not answer.get("kind") or not answer.get("apiVersion") or (answer["kind"] == _STATUS and not or_status):
        raise _in_its_place(f"{path}: the answer is no object of the API", answer)
    return answer


def _items(path: str, answer: Manifest) -> Manifests:
    """Of a list, which an answer without items is not: taken for an empty one, all that there is would be gone. Raises
    Unavailable.
    """
    items, kind = answer.get("items", 0), answer.get("kind")
    if not isinstance(kind, str) or not kind.endswith("List") or not isinstance(items, list | None):
        raise _in_its_place(f"{path}: the answer is no list of the API", answer)
    return items or []


def _in_its_place(what: str, answer: object) -> Unavailable:
    return Unavailable(f"{what}; something between here and the API server answers in its place: {repr(answer)[:120]}")


def _no_answer(method: str, server: str, path: str, error: Exception, seconds: float) -> str:
    if isinstance(error, TimeoutError):
        return f"{method} {path}: no answer from {server} within {seconds:.0f} s; the call may have taken effect"
    return f"{method} {path}: no connection to the API server {server}: {str(error) or type(error).__name__}"


def _refusal(method: str, path: str, status: int, content: bytes, retry_after: str = "") -> ClusterError:
    """The error of an HTTP status; its text is the API's own where there is one."""
    answer = _said(content)
    said = str(answer.get("message") or "")
    if status == 404:
        if _names_an_object(answer):
            return NotFound(said or f"{method} {path}: not found")
        return NotServed(
            f"{method} {path}: 404, and no word of an object: the API server does not serve that path, or something "
            f"between here and it answers in its place: {said!r:.200}"
        )
    if status < 500 and status not in (401, 408, 429) and answer.get("kind") != _STATUS:
        return _in_its_place(f"{method} {path}: {status}, and no Status of the API", said or answer)
    if status == 409:
        return Conflict(said or f"{method} {path}: conflict")
    if status == 401:
        return Unavailable(
            f"{method} {path}: the API server does not accept the token or certificate (401): it has expired, or "
            "belongs to another cluster"
        )
    if status < 400 or status >= 500 or status in (408, 410, 429):
        text = f"{method} {path}: the API server answered {status}: {said or 'no reason given'}"
        return (Expired if status == 410 else Unavailable)(text, _seconds(retry_after))
    return Rejected(said or f"{method} {path}: refused with {status}")


def _seconds(retry_after: str) -> float:
    """Of the header; a date in it, which no API server sends, counts as none."""
    wished = retry_after.strip()
    return min(float(wished), RETRY_AFTER_MOST_S) if wished.isascii() and wished.isdigit() else 0.0


def _names_an_object(said: Manifest) -> bool:
    """Whether a Status says what is missing. Of a path that is not served it does not, and a proxy sends none."""
    details = said.get("details")
    return said.get("kind") == _STATUS and isinstance(details, dict) and bool(details.get("name"))


def _said(content: bytes) -> Manifest:
    """A Status object; of other text one that has it as its message."""
    text = content.decode("utf-8", "replace").strip()
    try:
        document = json.loads(text)
    except ValueError:
        return {"message": text[:400]}
    return document if isinstance(document, dict) else {}

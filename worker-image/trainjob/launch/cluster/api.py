"""A cluster's API as plain JSON over HTTP, for programs that a person waits for: the command line and the trainer.

Synchronous, one request a call, nothing retried: who follows a job retries by itself. The `kubernetes` package reads
the kubeconfig (contexts, exec plugins, certificates, in-cluster tokens) and is imported on connecting; requests go
through the connection pool that it set up. The operator has its own, asynchronous one
(`trainjob_operator.k8s.kubeapi`).
"""

from __future__ import annotations

import json
import os
import ssl
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from trainjob.launch.errors import LaunchError

Manifest = dict[str, Any]

CONNECT_S = 5.0
READ_S = 30.0
PAGE = 500
DEFAULT_KUBECONFIG = "~/.kube/config"
_NO_SUCH_KIND = ("could not find the requested resource", "404 page not found")
"""What an API server says of a kind, or of a whole group, that it does not know."""
NAMESPACE_FILE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"


class ApiError(LaunchError):
    """The cluster refused, or gave no answer."""

    def __init__(self, message: str, *, next_step: str, status: int | None = None, reason: str = "") -> None:
        super().__init__(message)
        self.next_step = next_step
        """A sentence or command that gets the user on. Python shows it below the traceback."""
        self.add_note(f"next: {next_step}")
        self.status = status
        """HTTP status; None: no answer of the API server's came, or there is no cluster to ask."""
        self.reason = reason
        """Kubernetes' one word for it: AlreadyExists, NotFound, ..."""

    @property
    def absent(self) -> bool:
        """Whether the API server says that there is no such object. Of a kind that is not served it says nothing of any
        object.
        """
        return self.status == 404 and self.reason != "NoCRD"

    @property
    def passing(self) -> bool:
        """Whether the same request may well succeed in a moment (an API server that restarts, throttling)."""
        return self.status is None or self.status == 429 or self.status >= 500


class Api:
    """A connection to one cluster as one user."""

    def __init__(
        self,
        configuration: Any,
        pool: Any,
        *,
        namespace: str,
        context: str,
        again: Callable[[], tuple[Any, Any]] | None = None,
    ) -> None:
        self._configuration, self._pool = configuration, pool
        self._again = again
        """Reads the credentials anew, for a server that no longer takes them."""
        self.namespace = namespace
        """Where commands act when none is named: the context's, else `default`."""
        self.context = context
        """For messages: the context's name, or `in-cluster`."""
        self.server = str(configuration.host).rstrip("/")

    @classmethod
    def connect(cls, *, kubeconfig: str | None = None, context: str | None = None) -> Api:
        """Read the kubeconfig (this file, else $KUBECONFIG, else ~/.kube/config), or inside a pod its service
        account. Asks nothing yet.
        """
        try:
            from kubernetes import client, config
            from kubernetes.config.config_exception import ConfigException
        except ImportError:
            raise ApiError(
                "the Python package `kubernetes`, which speaks to clusters, is not installed",
                next_step=f"{sys.executable} -m pip install kubernetes, then the same again",
            ) from None
        where = kubeconfig or os.environ.get("KUBECONFIG") or DEFAULT_KUBECONFIG

        def read() -> tuple[Any, str, str]:
            configuration = client.Configuration()
            try:
                if not kubeconfig and not context and not _exists(where) and os.environ.get("KUBERNETES_SERVICE_HOST"):
                    config.load_incluster_config(client_configuration=configuration)
                    return configuration, _own_namespace(), "in-cluster"
                namespace, name = _context(config.list_kube_config_contexts(config_file=where), context, where)
                config.load_kube_config(
                    config_file=where, context=name, client_configuration=configuration, persist_config=False
                )
                return configuration, namespace, name
            except (ConfigException, OSError, ValueError) as error:
                raise _no_config(where, context, error) from None

        def pool_of(configuration: Any) -> Any:
            pool = client.ApiClient(configuration).rest_client.pool_manager
            if configuration.verify_ssl and (configuration.ssl_ca_cert or configuration.ca_cert_data):
                pool.connection_pool_kw["ssl_context"] = _lenient()
            return pool

        def again() -> tuple[Any, Any]:
            renewed = read()[0]
            return renewed, pool_of(renewed)

        configuration, namespace, name = read()
        return cls(configuration, pool_of(configuration), namespace=namespace, context=name, again=again)

    def get(self, path: str) -> Manifest:
        """One object."""
        return self._object("GET", path)

    def document(self, path: str) -> Manifest:
        """What is no object of the API: its version."""
        return self._json("GET", path)

    def items(self, path: str, **params: str) -> list[Manifest]:
        """All objects of a list, read page by page."""
        found: list[Manifest] = []
        token = ""
        while True:
            asked = {"limit": str(PAGE), **({"continue": token} if token else {}), **params}
            answer = self._object("GET", path, params=asked)
            if not str(answer["kind"]).endswith("List") or not isinstance(answer.get("items", 0), (list, type(None))):
                raise self._another(path, "no list")
            found += answer["items"] or []
            before, token = token, (answer.get("metadata") or {}).get("continue") or ""
            if not token:
                return found
            if token == before:
                raise self._another(path, "a list that goes on where it has been")

    def create(self, path: str, body: Manifest, **params: str) -> Manifest:
        """POST; `path` is the collection's."""
        return self._object("POST", path, body=body, params=params)

    def patch(self, path: str, body: Manifest) -> Manifest:
        """JSON merge patch: a field to be removed is there as None."""
        return self._object("PATCH", path, body=body, content="application/merge-patch+json")

    def delete(self, path: str, body: Manifest | None = None) -> Manifest:
        """DELETE with its options."""
        return self._object("DELETE", path, body=body, kinds=("Status",))

    def lines(self, path: str, *, idle_s: float = READ_S, **params: str) -> Iterator[str]:
        """The lines of a text answer as they come. Raises ApiError when none came for `idle_s`, or the connection
        broke.
        """
        import urllib3.exceptions as http

        response = self._request("GET", path, params=params, read_s=idle_s)
        rest = b""
        try:
            for chunk in response.stream(65536, decode_content=True):
                *complete, rest = (rest + chunk).split(b"\n")
                yield from (line.decode("utf-8", "replace") for line in complete)
            if rest:
                yield rest.decode("utf-8", "replace")
        except (http.HTTPError, OSError) as error:
            raise self._unreachable(path, error) from None
        finally:
            response.close()

    def _object(self, method: str, path: str, *, kinds: Sequence[str] = (), **request: Any) -> Manifest:
        """The API says of each answer what it is; one that does not says nothing of what was asked: it came from
        somebody else. `kinds`: a Status, which is no object, is meant too.
        """
        found = self._json(method, path, **request)
        kind = found.get("kind")
        if not kind or not found.get("apiVersion") or (kind == "Status" and kind not in kinds):
            raise self._another(path, "something that is no object of the API")
        return found

    def _json(
        self,
        method: str,
        path: str,
        *,
        body: Manifest | None = None,
        params: Mapping[str, str] | None = None,
        content: str = "application/json",
    ) -> Manifest:
        response = self._request(method, path, body=body, params=params, content=content)
        try:
            found = json.loads(response.data)
        except ValueError:
            raise self._another(path, "something that is no JSON") from None
        if not isinstance(found, dict):
            raise self._another(path, "no object")
        return found

    def _request(
        self,
        method: str,
        path: str,
        *,
        body: Manifest | None = None,
        params: Mapping[str, str] | None = None,
        content: str = "application/json",
        read_s: float = READ_S,
    ) -> Any:
        from urllib.parse import urlencode

        import urllib3
        import urllib3.exceptions as http

        url = self.server + path + (f"?{urlencode(params)}" if params else "")
        timeout = urllib3.Timeout(connect=CONNECT_S, read=read_s)
        data = None if body is None else json.dumps(body).encode()

        def send() -> Any:
            headers = {"Accept": "application/json, */*", "Content-Type": content, **self._credentials()}
            return self._pool.request(
                method, url, body=data, headers=headers, timeout=timeout, retries=False, preload_content=False
            )

        try:
            response = send()
            if response.status == 401 and self._again is not None:
                # A token that has ended: the kubeconfig may have another by now, and its exec plugin makes one.
                response.drain_conn()
                self._configuration, self._pool = self._again()
                response = send()
            if response.status >= 400:
                raise self._refused(method, path, response.status, response.data)
        except (http.HTTPError, OSError) as error:
            raise self._unreachable(path, error) from None
        return response

    def _credentials(self) -> dict[str, str]:
        """Asked for each time: tokens of exec plugins and service accounts are renewed."""
        found = self._configuration.auth_settings()
        return {str(setting["key"]): str(setting["value"]) for setting in found.values() if setting.get("value")}

    def _unreachable(self, path: str, error: Exception) -> ApiError:
        why = getattr(error, "reason", None) or error
        return ApiError(
            f"the API server {self.server} (context {self.context}) gave no answer to {path}: {why}",
            next_step="`kubectl cluster-info` shows whether it is there; `tj doctor` looks closer",
        )

    def _another(self, path: str, what: str) -> ApiError:
        """Somebody else answers: a proxy's page to log in at, a balancer that has no way to the API server."""
        return ApiError(
            f"{self.server}{path} was answered with {what}: something between here and the API server answers in its "
            "place",
            next_step="check that the kubeconfig's server is a Kubernetes API server, not a proxy's log-in page",
        )

    def _refused(self, method: str, path: str, status: int, data: bytes) -> ApiError:
        try:
            said = dict(json.loads(data))
            message, reason = str(said.get("message") or ""), str(said.get("reason") or "")
        except (ValueError, TypeError):
            said, message, reason = {}, data[:300].decode("utf-8", "replace").strip(), ""
        if status == 401:
            return ApiError(
                f"the API server {self.server} does not know you (401)",
                next_step=f"log in again: the credentials of context {self.context} are missing or have expired",
                status=401,
                reason=reason,
            )
        if status == 404 and _of_ours(path) and any(words in message for words in _NO_SUCH_KIND):
            return ApiError(
                "the cluster does not know TrainJobs: the CRD is not installed",
                next_step="`tj doctor` says how to install TrainJob",
                status=404,
                reason="NoCRD",
            )
        details = said.get("details")
        nameless = status == 404 and not (isinstance(details, dict) and details.get("name"))
        if status < 500 and status not in (408, 429) and (nameless or said.get("kind") != "Status"):
            return self._another(path, f"{status} in other words than the API's ({message[:100]!r})")
        if status == 403:
            return ApiError(
                f"you may not do this: {message}",
                next_step="`tj doctor` lists your rights and the command that an administrator grants them with",
                status=403,
                reason=reason,
            )
        return ApiError(
            message or f"{method} {path} was answered with {status}",
            next_step="`tj doctor` checks the installation",
            status=status,
            reason=reason,
        )


def _lenient() -> ssl.SSLContext:
    """For a cluster's own authority. From Python 3.13 on TLS is strict by itself, for authorities of the world: what it
    asks for (key usage, key identifiers) is left out of some clusters' own.
    """
    from urllib3.util.ssl_ import create_urllib3_context

    context = create_urllib3_context()
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _of_ours(path: str) -> bool:
    from trainjob_api.contract import GROUP

    return path.startswith(f"/apis/{GROUP}/")


def configured() -> bool:
    """Whether there is a cluster to ask where none is named: by a kubeconfig, or around this pod."""
    where = os.environ.get("KUBECONFIG") or DEFAULT_KUBECONFIG
    return _exists(where) or bool(os.environ.get("KUBERNETES_SERVICE_HOST"))


def _exists(where: str) -> bool:
    return any(os.path.isfile(os.path.expanduser(file)) for file in where.split(os.pathsep))


def _own_namespace() -> str:
    try:
        with open(NAMESPACE_FILE, encoding="utf-8") as file:
            return file.read().strip() or "default"
    except OSError:
        return "default"


def _context(contexts: tuple[list[Manifest], Manifest], wanted: str | None, where: str) -> tuple[str, str]:
    """(namespace, name) of the context that is meant."""
    known, current = contexts
    chosen = current if wanted is None else next((entry for entry in known if entry["name"] == wanted), None)
    if chosen is None:
        names = ", ".join(sorted(str(entry["name"]) for entry in known)) or "none"
        raise ApiError(
            f"there is no context {wanted!r} in {where} (there are: {names})",
            next_step="`kubectl config get-contexts` lists them",
        )
    return str((chosen.get("context") or {}).get("namespace") or "default"), str(chosen["name"])


def _no_config(where: str, context: str | None, error: Exception) -> ApiError:
    if not _exists(where):
        unset = ", and KUBECONFIG is not set" if where == DEFAULT_KUBECONFIG else ""
        return ApiError(
            f"there is no kubeconfig: {where} does not exist{unset}",
            next_step="name one with --kubeconfig or KUBECONFIG; your cluster's provider says how to get it",
        )
    return ApiError(
        f"the kubeconfig {where} cannot be used{f' with context {context}' if context else ''}: {error}",
        next_step="`kubectl config view` shows what it says",
    )

"""Who an agent is: checks the projected service-account tokens that agents show. `TokenCheck` is the coordinator's
Authenticate.

Cluster-wide, the API server judges each token (TokenReview) whose signature is the cluster's; in a namespaced
installation, which may not ask that, the cluster's public keys judge alone (`token_keys.py`). Verdicts are remembered,
and for longer while the API is silent. That the pod is there and belongs to the job is the coordinator's own check. A
check that fails refuses its own token alone; only several in a row mean that the API is silent.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any, Protocol

import jwt

from trainjob_operator.agents.callers import Caller
from trainjob_operator.agents.rate_limit import RateLimit
from trainjob_operator.clock import Clock, SystemClock
from trainjob_operator.cluster import ClusterError, Manifest, Rejected, Unavailable
from trainjob_operator.trust.token_keys import LEEWAY_S, KeyApi, Signature, TokenKeys

POSITIVE_S = 60.0
"""An accepted token is believed for so long, and never beyond its own end."""
SIGNED_S = 600.0
"""The same where the cluster's keys have verified it too: ten thousand agents must not mean a review each minute for
each. That a pod is gone the coordinator knows from its list. Where the keys judge alone, it is they that are believed
for so long.
"""
NEGATIVE_S = 10.0
OUTAGE_S = 900.0
"""While the API is silent: so long a token is still believed after its verdict should have been asked for anew."""
SILENT_S = 5.0
"""After a failed check its token, and after FAILURES in a row the API, is left alone for so long."""
FAILURES = 4
UNSIGNED_RATE, UNSIGNED_BURST = 20.0, 200.0
"""Reviews a second, and at once, of tokens whose signature cannot be told: strangers use the operator's own share of
the API server with them."""
REVIEW_TIMEOUT_S = 10.0
REVIEWS_AT_ONCE = 32
POSITIVES_KEPT = 50_000
NEGATIVES_KEPT = 4_096
TOKEN_LIMIT = 16 * 1024
"""Characters; a cluster's own have about 1,000."""

LOG = logging.getLogger(__name__)

REVIEW_PATH = "/apis/authentication.k8s.io/v1/tokenreviews"
POD_NAME = "authentication.kubernetes.io/pod-name"
POD_UID = "authentication.kubernetes.io/pod-uid"
SERVICE_ACCOUNT = "system:serviceaccount:"


class TokenApi(KeyApi, Protocol):
    """What is asked of the API server."""

    async def create(self, path: str, body: Manifest) -> Manifest: ...


@dataclass(frozen=True)
class _Verdict:
    caller: Caller | None
    """None: refused."""
    fresh_until: float
    """Monotonic."""
    usable_until: float
    """While the API is silent."""
    ends: float
    """Wall clock: the token's own end."""


class _TooMany(Unavailable):
    """Not asked at all."""


class TokenCheck:
    """One for the operator. `namespaces`: the only ones whose pods are accepted; empty: all of the cluster."""

    def __init__(
        self, api: TokenApi, audience: str, namespaces: Collection[str] = (), clock: Clock | None = None
    ) -> None:
        self._api = api
        self._audience = audience
        self._namespaces = frozenset(namespaces)
        self._clock = clock or SystemClock()
        self._keys = TokenKeys(api, audience, self._clock)
        self._unsigned = RateLimit[None](UNSIGNED_RATE, UNSIGNED_BURST)
        self._accepted = _Lru(POSITIVES_KEPT)
        self._refused = _Lru(NEGATIVES_KEPT)
        self._checks: dict[bytes, asyncio.Task[_Verdict]] = {}
        self._room = asyncio.Semaphore(REVIEWS_AT_ONCE)
        self._resting = _Lru(NEGATIVES_KEPT)
        """Tokens whose check failed, until it is made again."""
        self._failures = 0
        """Checks that failed in a row."""
        self._silent_until = 0.0

    async def __call__(self, token: str) -> Caller | None:
        """Who shows this token; None: nobody we trust. Raises ClusterError when that cannot be found out now."""
        if not 0 < len(token) <= TOKEN_LIMIT or not token.isascii():
            return None
        digest = hashlib.sha256(token.encode()).digest()
        now, monotonic = self._clock.now().timestamp(), self._clock.monotonic()
        known = self._accepted.get(digest) or self._refused.get(digest)
        if known is not None and monotonic < known.fresh_until and known.ends + LEEWAY_S > now:
            return known.caller  # every sync comes here: nothing of the token is read again
        claims = _claims(token)
        if claims is None or not _names_audience(claims, self._audience) or not claims["exp"] + LEEWAY_S > now:
            return None  # no need to ask anybody
        usable = known if known is not None and known.caller is not None and monotonic < known.usable_until else None
        resting = self._resting.get(digest)
        if monotonic < self._silent_until or (resting is not None and monotonic < resting.fresh_until):
            if usable is None:
                raise Unavailable("the API server did not answer the last token check; the next one is made shortly")
            return usable.caller
        try:
            verdict = await self._shared(digest, lambda: self._check(token, claims["exp"]))
        except ClusterError as error:
            self._note_failure(digest, error)
            if usable is None:
                raise
            return usable.caller
        return verdict.caller

    def _note_failure(self, digest: bytes, error: ClusterError) -> None:
        until = self._clock.monotonic() + SILENT_S
        self._resting.put(digest, _Verdict(None, until, until, math.inf))
        if isinstance(error, _TooMany):
            return
        self._failures += 1
        if self._failures < FAILURES:
            return
        if self._clock.monotonic() >= self._silent_until:
            LOG.warning(
                "workers' tokens cannot be checked, known ones are believed for %.0f min: %s", OUTAGE_S / 60, error
            )
        self._silent_until = until

    async def _shared(self, digest: bytes, check: Callable[[], Awaitable[_Verdict]]) -> _Verdict:
        """All who show the same token at once wait for one check, which goes on if one of them hangs up."""
        task = self._checks.get(digest)
        if task is None:
            task = self._checks[digest] = asyncio.ensure_future(self._noted(digest, check))
            task.add_done_callback(lambda done: (self._checks.pop(digest, None), done.cancelled() or done.exception()))
        return await asyncio.shield(task)

    async def _noted(self, digest: bytes, check: Callable[[], Awaitable[_Verdict]]) -> _Verdict:
        try:
            async with asyncio.timeout(REVIEW_TIMEOUT_S), self._room:
                verdict = await check()
        except TimeoutError:
            raise Unavailable(f"the API server did not answer a token check within {REVIEW_TIMEOUT_S:.0f} s") from None
        self._failures = 0
        (self._accepted if verdict.caller is not None else self._refused).put(digest, verdict)
        (self._refused if verdict.caller is not None else self._accepted).drop(digest)
        return verdict

    async def _check(self, token: str, ends: float) -> _Verdict:
        caller, believed_s = await self._verdict(token)
        if caller is not None and self._namespaces and caller.namespace not in self._namespaces:
            caller = None
        now = self._clock.monotonic()
        if caller is None:
            return _Verdict(None, now + NEGATIVE_S, now + NEGATIVE_S, ends)
        return _Verdict(caller, now + believed_s, now + believed_s + OUTAGE_S, ends)

    async def _verdict(self, token: str) -> tuple[Caller | None, float]:
        """Who it is, and for how many seconds that is believed."""
        if self._namespaces:
            return await self._keys.verify(token), self._keys.good_for_s()
        signature = await self._keys.signature(token)
        if signature is Signature.FORGED:
            return None, 0.0
        if signature is Signature.UNKNOWN and self._unsigned.admit(None, self._clock.monotonic()) > 0.0:
            raise _TooMany("too many tokens come whose signature cannot be told; this one is checked a little later")
        return await self._review(token), SIGNED_S if signature is Signature.GOOD else POSITIVE_S

    async def _review(self, token: str) -> Caller | None:
        """The API server's verdict, which knows whether the pod is still there."""
        spec = {"token": token, "audiences": [self._audience]}
        review = await self._api.create(
            REVIEW_PATH, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
        )
        status = review.get("status") or {}
        if not status.get("authenticated"):
            return None
        if self._audience not in (status.get("audiences") or ()):
            raise Rejected(
                "the API server's token review says nothing about audiences, so tokens for others cannot be told apart"
            )
        user = status.get("user") or {}
        extra = user.get("extra") or {}
        account = str(user.get("username") or "")
        name, uid = (extra.get(POD_NAME) or [""])[0], (extra.get(POD_UID) or [""])[0]
        if not account.startswith(SERVICE_ACCOUNT) or not name or not uid:
            return None
        return Caller(pod_uid=uid, pod_name=name, namespace=account.removeprefix(SERVICE_ACCOUNT).partition(":")[0])


class _Lru:
    """Verdicts by the token's digest; the tokens themselves are not kept."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._verdicts: OrderedDict[bytes, _Verdict] = OrderedDict()

    def get(self, digest: bytes) -> _Verdict | None:
        verdict = self._verdicts.get(digest)
        if verdict is not None:
            self._verdicts.move_to_end(digest)
        return verdict

    def put(self, digest: bytes, verdict: _Verdict) -> None:
        self._verdicts[digest] = verdict
        self._verdicts.move_to_end(digest)
        if len(self._verdicts) > self._limit:
            self._verdicts.popitem(last=False)

    def drop(self, digest: bytes) -> None:
        self._verdicts.pop(digest, None)


def _claims(token: str) -> dict[str, Any] | None:
    """What the token says of itself, unverified; None: it is none of a cluster's tokens."""
    try:
        claims = jwt.decode(token, options={"verify_signature": False})
    except (jwt.InvalidTokenError, RecursionError):
        return None
    exp = claims.get("exp")
    return claims if isinstance(exp, int | float) and not isinstance(exp, bool) else None


def _names_audience(claims: dict[str, Any], audience: str) -> bool:
    named = claims.get("aud")
    return audience == named or (isinstance(named, list) and audience in named)

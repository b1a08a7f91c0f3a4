"""Checks a service-account token with the cluster's public keys, without asking for a verdict. Called by `tokens.py`:
in namespaced installations for the whole verdict, else for the signature alone, so that nobody can make the operator
ask for verdicts on tokens that the cluster never signed.

A deleted pod's token stays good until its end here: only its roster tells the coordinator that the pod is gone.
"""

from __future__ import annotations

import asyncio
import math
from datetime import datetime
from enum import Enum
from typing import Any, Protocol

import jwt

from trainjob_operator.agents.callers import Caller
from trainjob_operator.clock import Clock
from trainjob_operator.cluster import ClusterError, Manifest, Rejected

DISCOVERY_PATH = "/.well-known/openid-configuration"
KEYS_PATH = "/openid/v1/jwks"
ALGORITHMS = ("RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512")
"""What an API server signs with; never `none`, never a shared secret."""
LEEWAY_S = 10.0
REFRESH_S = 600.0
"""So old keys are fetched anew: one that the cluster has withdrawn must go."""
UNKNOWN_EVERY_S = 10.0
"""A token with an unknown key makes us look again at most this often."""
KEYS_OUTAGE_S = 3600.0
"""While the API is silent: so long the keys that we have are believed."""
_SIGNATURE_ALONE: Any = dict.fromkeys(
    ("verify_exp", "verify_nbf", "verify_iat", "verify_aud", "verify_iss", "verify_sub", "verify_jti"), False
)
SUBJECT = "system:serviceaccount:"


class Signature(Enum):
    """What the cluster's keys say of a token."""

    GOOD = "good"
    FORGED = "forged"
    """It names one of the cluster's keys, and that key did not sign it."""
    UNKNOWN = "unknown"
    """The keys cannot be read, or it names another one."""


class KeyApi(Protocol):
    """What is asked of the API server."""

    async def document(self, path: str) -> Manifest: ...


class TokenKeys:
    """The cluster's issuer and keys by their id."""

    def __init__(self, api: KeyApi, audience: str, clock: Clock) -> None:
        self._api = api
        self._audience = audience
        self._clock = clock
        self._issuer = ""
        self._keys: dict[str, jwt.PyJWK] = {}
        self._fetched_at: float | None = None
        self._tried_at: float | None = None
        self._fetching = asyncio.Lock()

    async def verify(self, token: str) -> Caller | None:
        """Whose token it is; None: it is not good. Raises ClusterError when the keys cannot be read."""
        try:
            kid = jwt.get_unverified_header(token).get("kid")
        except jwt.InvalidTokenError:
            return None
        key = await self._key(str(kid))
        if key is None or key.algorithm_name not in ALGORITHMS:
            return None
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                audience=self._audience,
                issuer=self._issuer,
                # Times are compared with the clock that we were given, below.
                options={
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                    "require": ["exp", "aud", "iss"],
                },
            )
        except jwt.InvalidTokenError:
            return None
        return _caller(claims, self._clock.now())

    def good_for_s(self) -> float:
        """For so many seconds a verdict of these keys counts: until they are fetched anew, for one may be withdrawn
        meanwhile. Keys that are older, while the API is silent, are tried again that soon.
        """
        fetched_at = -math.inf if self._fetched_at is None else self._fetched_at
        left = fetched_at + REFRESH_S - self._clock.monotonic()
        return left if left > 0.0 else UNKNOWN_EVERY_S

    async def signature(self, token: str) -> Signature:
        """Who signed it; everything else it says is left to others. Never raises ClusterError."""
        tried = self._tried_at
        if self._fetched_at is None and tried is not None and self._clock.monotonic() - tried < UNKNOWN_EVERY_S:
            return Signature.UNKNOWN
        try:
            key = await self._key(str(jwt.get_unverified_header(token).get("kid")))
        except jwt.InvalidTokenError:
            return Signature.FORGED
        except ClusterError:
            return Signature.UNKNOWN
        if key is None or key.algorithm_name not in ALGORITHMS:
            return Signature.UNKNOWN
        try:
            jwt.decode(token, key, algorithms=[key.algorithm_name], options=_SIGNATURE_ALONE)
        except jwt.InvalidTokenError:
            return Signature.FORGED
        return Signature.GOOD

    async def _key(self, kid: str) -> jwt.PyJWK | None:
        async with self._fetching:
            now = self._clock.monotonic()
            age = None if self._fetched_at is None else now - self._fetched_at
            wanted = age is None or age > REFRESH_S or kid not in self._keys
            if wanted and (self._tried_at is None or now - self._tried_at > UNKNOWN_EVERY_S or age is None):
                self._tried_at = now
                try:
                    await self._fetch()
                except ClusterError:
                    if age is None or age > KEYS_OUTAGE_S or kid not in self._keys:
                        raise
            return self._keys.get(kid)

    async def _fetch(self) -> None:
        discovery, found = await self._api.document(DISCOVERY_PATH), await self._api.document(KEYS_PATH)
        keys = {}
        for jwk in found.get("keys") or []:
            try:
                key = jwt.PyJWK(jwk)
            except jwt.PyJWTError:
                continue  # of a kind that this library does not know; its tokens are refused
            keys[str(key.key_id)] = key
        issuer = discovery.get("issuer")
        if not keys or not isinstance(issuer, str) or not issuer:
            raise Rejected(
                f"the API server serves no usable keys for service-account tokens ({DISCOVERY_PATH}, {KEYS_PATH})"
            )
        self._issuer, self._keys, self._fetched_at = issuer, keys, self._clock.monotonic()


def _caller(claims: dict[str, Any], now: datetime) -> Caller | None:
    """The pod that a verified token is bound to, if it is valid now."""
    exp, nbf = claims["exp"], claims.get("nbf", 0)
    if not _is_number(exp) or not _is_number(nbf) or not nbf - LEEWAY_S <= now.timestamp() < exp + LEEWAY_S:
        return None
    bound = claims.get("kubernetes.io")
    pod = bound.get("pod") if isinstance(bound, dict) else None
    if not isinstance(bound, dict) or not isinstance(pod, dict):
        return None
    namespace, name, uid = bound.get("namespace"), pod.get("name"), pod.get("uid")
    if not all(isinstance(text, str) and text for text in (namespace, name, uid)) or not str(
        claims.get("sub")
    ).startswith(f"{SUBJECT}{namespace}:"):
        return None
    return Caller(pod_uid=str(uid), pod_name=str(name), namespace=str(namespace))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

"""For tests of trust: an API in memory that keeps objects, signs and judges tokens and can fall silent; a real
coordinator with TLS on loopback.

The API is the boundary's double (`certificates.SecretApi`, `tokens.TokenApi`, `routing.SliceApi`);
tests/trust/test_on_apiserver.py holds the same code against a real API server.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import functools
import itertools
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

from support.clusters import manifest
from support.patience import HANG_S
from trainjob.agent.config import Endpoint
from trainjob.agent.control.http_post import trust
from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJob
from trainjob_operator.agents.callers import Authenticate
from trainjob_operator.agents.coordinator import Coordinator
from trainjob_operator.clock import SystemClock
from trainjob_operator.cluster import ClusterError, Conflict, JobKey, NotFound
from trainjob_operator.core.model import PodPhase, PodView
from trainjob_operator.trust.certificates import Trust

T = TypeVar("T")
ISSUER = "https://kubernetes.default.svc"
REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"


def _new_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


_first_key = functools.cache(_new_key)
"""Keys take their time: the first one of every API is the same."""


class Signer:
    """One key of the cluster."""

    def __init__(self, kid: str, key: rsa.RSAPrivateKey | None = None) -> None:
        self.kid = kid
        self.key = key or _new_key()

    @property
    def jwk(self) -> dict[str, Any]:
        return {
            **jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key(), as_dict=True),
            "kid": self.kid,
            "alg": "RS256",
            "use": "sig",
        }

    def token(
        self, pod: str, uid: str, *, now: float, namespace: str = "default", seconds: float = 3600.0, **claims: Any
    ) -> str:
        """As a kubelet projects it; `claims` replace (None: removes)."""
        bound = {
            "namespace": namespace,
            "pod": {"name": pod, "uid": uid},
            "serviceaccount": {"name": "default", "uid": "sa"},
        }
        document = {
            "iss": ISSUER,
            "aud": [contract.TOKEN_AUDIENCE],
            "sub": f"system:serviceaccount:{namespace}:default",
            "iat": now,
            "nbf": now,
            "exp": now + seconds,
            "kubernetes.io": bound,
            **claims,
        }
        return jwt.encode(
            {k: v for k, v in document.items() if v is not None}, self.key, algorithm="RS256", headers={"kid": self.kid}
        )


class MemoryApi:
    """Objects by path. `silent`: raised instead of any answer; `now`: its wall clock; `before`: awaited before each
    answer.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.calls: list[tuple[str, str]] = []
        self.signers = [Signer("one", _first_key())]
        self.gone_pods: set[str] = set()
        self.silent: ClusterError | None = None
        self.now = now
        self.before: Callable[[], Awaitable[None]] | None = None
        self._versions = itertools.count(1)

    def count(self, path: str) -> int:
        return sum(called == path for _, called in self.calls)

    async def document(self, path: str) -> dict[str, Any]:
        await self._called("GET", path)
        if path == "/.well-known/openid-configuration":
            return {"issuer": ISSUER}
        assert path == "/openid/v1/jwks"
        return {"keys": [signer.jwk for signer in self.signers]}

    async def get(self, path: str) -> dict[str, Any]:
        await self._called("GET", path)
        if path not in self.objects:
            raise NotFound(path)
        return copy.deepcopy(self.objects[path])

    async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        await self._called("POST", path)
        if path == REVIEWS:
            return {**body, "status": self._review(body["spec"])}
        own = f"{path}/{body['metadata']['name']}"
        if own in self.objects:
            raise Conflict(f"{own} exists")
        return self.put(own, body)

    async def replace(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        await self._called("PUT", path)
        if path not in self.objects:
            raise NotFound(path)
        if body["metadata"]["resourceVersion"] != self.objects[path]["metadata"]["resourceVersion"]:
            raise Conflict(path)
        return self.put(path, body)

    async def delete(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        await self._called("DELETE", path)
        if path not in self.objects:
            raise NotFound(path)
        return self.objects.pop(path)

    def put(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        version = str(next(self._versions))
        metadata = {"uid": f"uid-{version}", **body["metadata"], "resourceVersion": version}
        self.objects[path] = copy.deepcopy({**body, "metadata": metadata})
        return copy.deepcopy(self.objects[path])

    async def _called(self, verb: str, path: str) -> None:
        self.calls.append((verb, path))
        if self.before is not None:
            await self.before()
        if self.silent is not None:
            raise self.silent

    def _review(self, spec: dict[str, Any]) -> dict[str, Any]:
        """As kube-apiserver: signature, times, audience, and whether the pod is there."""
        for signer in self.signers:
            try:
                unchecked = {"verify_exp": False, "verify_nbf": False, "verify_iat": False}
                claims = jwt.decode(
                    spec["token"],
                    signer.key.public_key(),
                    algorithms=["RS256"],
                    audience=spec["audiences"],
                    issuer=ISSUER,
                    options=unchecked,
                )
            except jwt.InvalidTokenError:
                continue
            pod = claims["kubernetes.io"].get("pod")
            if claims["exp"] <= self.now() or (pod and pod["uid"] in self.gone_pods):
                break
            extra = {f"authentication.kubernetes.io/pod-{k}": [v] for k, v in (pod or {}).items()}
            return {
                "authenticated": True,
                "audiences": spec["audiences"],
                "user": {"username": claims["sub"], "extra": extra},
            }
        return {"authenticated": False, "error": "[invalid bearer token]"}


class CoordinatorThread:
    """The real coordinator on 127.0.0.1 in a thread with a loop of its own. Use as a context manager."""

    def __init__(self, authenticate: Authenticate, trust: Trust | None = None, port: int = 0) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.coordinator = Coordinator(
            clock=SystemClock(), authenticate=authenticate, find_owner=_no_owner, master_key=b"key" * 11, transition=1
        )
        self.url = self.run(self.coordinator.start("127.0.0.1", port, None if trust is None else trust.ssl_context))
        self.port = int(self.url.rpartition(":")[2])
        self.committed = 0

    def __enter__(self) -> CoordinatorThread:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """In its loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(HANG_S)

    def stop(self) -> None:
        """Close it and its loop."""
        if not self.loop.is_closed():
            self.run(self.coordinator.stop())
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(HANG_S)
            self.loop.close()

    def commit(
        self, pods: Mapping[int, str], *, name: str = "digits", uid: str = "uid-1", slots: str | None = None
    ) -> None:
        """A job with pods (UID by slot), as a turn would have read it."""

        async def do() -> None:
            self.committed += 1
            text = ",".join(str(slot) for slot in pods) if slots is None else slots
            metadata = {"name": name, "namespace": "default", "uid": uid, "resourceVersion": str(self.committed)}
            job = TrainJob.model_validate({**manifest(), "metadata": metadata, "status": {"slots": text}})
            views = [
                PodView(slot=slot, name=f"{name}-{slot}", uid=pod_uid, phase=PodPhase.RUNNING)
                for slot, pod_uid in pods.items()
            ]
            self.coordinator.commit(job, views)

        self.run(do())

    def views(self, name: str = "digits") -> dict[str, Any]:
        """What agents said, by pod UID."""

        async def do() -> dict[str, Any]:
            return dict(self.coordinator.views(("default", name)))

        return self.run(do())

    @property
    def refusals(self) -> dict[str, int]:
        return dict(self.coordinator.refusals)


async def _no_owner(key: JobKey) -> str | None:
    return None


def client_context(ca_pem: str) -> ssl.SSLContext:
    """An agent's."""
    context = trust(Endpoint(True, "localhost", 0, "/"), ca_pem)
    assert context is not None
    return context


def decoded(secret: Mapping[str, Any]) -> dict[str, bytes]:
    """A Secret's data."""
    return {name: base64.b64decode(value) for name, value in secret["data"].items()}

"""A worker pod as a rogue uses it: requests to the coordinator from inside it, and tokens that it should not be
believed with.
"""

from __future__ import annotations

import json
import re
import time
from typing import Any

import jwt

from support import e2e, outages, release
from trainjob_api import contract

_KEY = "/etc/kubernetes/pki/sa.key"
"""With which kubeadm's API server signs tokens."""


def knock(pod: str, namespace: str, **asked: Any) -> tuple[int, str]:
    """One request from inside a worker (see loops/knock.py): status and what the coordinator says."""
    status, said = json.loads(e2e.in_pod(pod, namespace, "python", "/code/knock.py", json.dumps(asked)))
    return int(status), str(said)


def token(pod: str, namespace: str, audience: str) -> str:
    """A token of the pod for another audience than the coordinator's, as anybody with rights in the namespace gets
    one.
    """
    uid = e2e.get("pod", pod, namespace)["metadata"]["uid"]
    bound = ("--bound-object-kind=Pod", f"--bound-object-name={pod}", f"--bound-object-uid={uid}")
    return e2e.kubectl("create", "token", "default", "-n", namespace, f"--audience={audience}", *bound).strip()


def signed_anew(pod: str, namespace: str, *, expires_in_s: float) -> str:
    """The pod's own token with another end, signed with the cluster's own key: right in everything else."""
    own = e2e.in_pod(pod, namespace, "cat", contract.TOKEN_FILE).strip()
    claims = jwt.decode(own, options={"verify_signature": False})
    ends = int(time.time() + expires_in_s)
    claims |= {"exp": ends, "iat": ends - 3600, "nbf": ends - 3600}
    return jwt.encode(
        claims,
        outages.on_node(outages.control_plane(), "cat", _KEY),
        algorithm="RS256",
        headers={"kid": jwt.get_unverified_header(own)["kid"]},
    )


def refusals() -> dict[str, int]:
    """What the leading operator has refused so far, by why, as Prometheus sees it."""
    path = f"/api/v1/namespaces/{release.NAMESPACE}/pods/{release.leader()}:{contract.METRICS_PORT}/proxy/metrics"
    text = e2e.kubectl("get", "--raw", path)
    return {
        why: int(float(count))
        for why, count in re.findall(r'^trainjob_sync_refusals_total\{why="([^"]*)"\} (\S+)$', text, re.MULTILINE)
    }

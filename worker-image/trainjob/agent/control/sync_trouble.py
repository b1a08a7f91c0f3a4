"""What keeps an agent from its coordinator, in words for the pod's log. Called by `sync`, which says each kind once.
Pure.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import NamedTuple, Optional

from trainjob.agent.config import AgentConfig
from trainjob.agent.control.http_post import Answer, PostError

TEXT_LIMIT = 300
"""Characters of a coordinator's sentence."""
NOT_YET_VALID, EXPIRED, OTHER_HOST, OTHER_ADDRESS = 9, 10, 62, 64
"""OpenSSL's verify codes (X509_V_ERR_*)."""


class Refused(PostError):
    """The coordinator answered, but not with an instruction."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(f"HTTP {answer.status}: {_sentence(answer.body)}")
        self.answer = answer


class NoInstruction(PostError):
    """An answer that says yes, and not what to do: somebody else's, or that of an operator of another kind."""

    def __init__(self, body: bytes) -> None:
        super().__init__(f"{_sentence(body)!r}")


class TokenUnreadable(PostError):
    """The token's file cannot be read."""


class Trouble(NamedTuple):
    """One kind of it, and what to say."""

    kind: str
    sentence: str


def is_certificate_trouble(error: Exception) -> bool:
    """Whether the server's certificate is what was refused."""
    return _verify_code(error) is not None


def describe(error: Exception, config: AgentConfig) -> Trouble:
    """What is wrong, its likely cause, and what mends it."""
    where = f"the coordinator at {config.coordinator.host}:{config.coordinator.port}"
    code = _verify_code(error)
    if code is not None:
        return Trouble(
            "certificate",
            f"the certificate of {where} is refused ({getattr(error, 'verify_message', error)}): "
            f"{_certificate_cause(code, config)}",
        )
    if isinstance(error, TokenUnreadable):
        return Trouble("token file", f"this pod's token cannot be read ({error}), so nothing is sent to {where}")
    if isinstance(error, NoInstruction):
        return Trouble(
            "no instruction",
            f"what answers as {where} tells nothing to do ({error}): a proxy in front of it, or another server? The "
            "operator's --coordinator-url says where agents look for it",
        )
    if isinstance(error, Refused):
        said = _sentence(error.answer.body)
        if error.answer.retry_after_s is not None:
            return Trouble("later", f"{where} asks to come again later ({said})")
        if error.answer.status == 401:
            return Trouble("token", f"{where} refuses this pod's token ({said})")
        return Trouble(
            f"HTTP {error.answer.status}", f"{where} refuses this agent's report (HTTP {error.answer.status}: {said})"
        )
    if isinstance(error, asyncio.TimeoutError) and not str(error):  # the system's own have a text
        return Trouble(
            "silence",
            f"{where} does not answer (no connection in time: the cluster's DNS does not tell its address, or nothing "
            "leads there)",
        )
    return Trouble("silence", f"{where} does not answer ({type(error).__name__}: {error})")


def _verify_code(error: Exception) -> Optional[int]:
    ssl = sys.modules.get("ssl")
    return error.verify_code if ssl is not None and isinstance(error, ssl.SSLCertVerificationError) else None


def _certificate_cause(code: int, config: AgentConfig) -> str:
    if code in (OTHER_HOST, OTHER_ADDRESS):
        return f"it is not for the name {config.coordinator.host}: is the operator's --coordinator-url right?"
    if code in (NOT_YET_VALID, EXPIRED):
        return "do the clocks of this node and of the operator's differ?"
    told = "" if config.coordinator_ca_file is None else "The operator tells this pod of it within two minutes. Else: a"
    return (
        "it is not of the authority that this pod was given at its start (was the operator's Secret made anew?). "
        f"{told or 'A'} new pod gets the present one: kubectl -n {config.namespace} delete pod {config.pod}"
    )


def _sentence(body: bytes) -> str:
    """The coordinator's own, or the start of what came."""
    try:
        said = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError, RecursionError):
        said = body.decode("utf-8", "replace")
    return "".join(c for c in str(said)[:TEXT_LIMIT] if c.isprintable())

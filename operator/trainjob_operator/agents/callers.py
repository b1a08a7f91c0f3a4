"""Who calls the coordinator, as the token says: for which pod it may speak. How a token is checked is `trust/tokens.py`
on a cluster, and `bearer` on one machine.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from trainjob_operator.agents.reports import Report
from trainjob_operator.cluster import JobKey
from trainjob_operator.core.pods.naming import pod_name


@dataclass(frozen=True)
class Caller:
    """Who a token belongs to."""

    pod_uid: str | None = None
    """The only pod that it may speak for; None: any pod of this installation."""
    pod_name: str | None = None
    namespace: str | None = None

    @property
    def key(self) -> JobKey | None:
        """The only job that its pod can belong to: pods are named after their job and slot."""
        return (
            None
            if self.pod_name is None or self.namespace is None
            else (self.namespace, self.pod_name.rpartition("-")[0])
        )

    def objection(self, report: Report) -> str | None:
        """Why this report is not its to make."""
        if self.pod_uid not in (None, report.pod_uid):
            return f"this token may not speak for the pod with UID {report.pod_uid}"
        if self.namespace not in (None, report.namespace) or self.pod_name not in (
            None,
            pod_name(report.job, report.slot),
        ):
            return (
                f"this token is of pod {self.namespace}/{self.pod_name}, which is not worker {report.slot} of "
                f"TrainJob {report.namespace}/{report.job}"
            )
        return None


Authenticate = Callable[[str], Awaitable[Caller | None]]
"""(bearer token, "" when none was sent) -> who calls, or None to refuse. Called for each request, before its body is
looked at.

Raises ClusterError when that cannot be found out now; the agent is then asked to come again."""


def bearer(token: str) -> Authenticate:
    """One shared token for all agents: the local backend's check."""
    expected = token.encode()

    async def authenticate(shown: str) -> Caller | None:
        return Caller() if hmac.compare_digest(shown.encode("utf-8", "surrogateescape"), expected) else None

    return authenticate

"""How an end is told to people: the second half of a sentence that begins with who ended.

Called by `failures.py`. Texts from ranks and pods are bounded where they enter status.
"""

from __future__ import annotations

import re
import signal

from trainjob_api import contract
from trainjob_api.contract import RankReport
from trainjob_operator.core.evictions import EVICTED, over_own_limit
from trainjob_operator.core.model import PodView
from trainjob_operator.core.rejections import is_refused_by_node

_BEFORE_ERROR = {
    contract.END_START: "cannot start: ",
    contract.END_EARLY: "left others waiting: ",
    contract.END_SIGNAL: "did not end well: ",
    contract.END_OOM: "was killed by SIGKILL: ",
    contract.END_DAMAGED: "found the checkpoint that it resumed from damaged: ",
    contract.END_STORAGE: "cannot use the job's storage: ",
    contract.END_FULL: "found no room for its checkpoint: ",
    contract.END_NOT_SHARED: "was not started: ",
    contract.END_INTERNAL: "was ended by its agent: ",
}
_WITHOUT_ERROR = {
    contract.END_LOST: "ended while its agent was down: the container was started again",
    contract.END_EARLY: "ended with exit code 0 while others waited for it",
    contract.END_DAMAGED: "found the checkpoint that it resumed from damaged",
    contract.END_STORAGE: "cannot use the job's storage",
    contract.END_FULL: "found no room for its checkpoint in the staging volume",
    contract.END_NOT_SHARED: "was not started: the storage path is not the same folder in all pods",
    contract.END_INTERNAL: "was ended by its agent, which could not continue",
    contract.END_STOPPED: "was stopped by its agent, though nothing had broken",
}


_GLOO_SOURCE = re.compile(r"\[\S*gloo/\S+:\d+\] ?")
_GLOO_ADVICE = re.compile(r"\.? This is typically caused by a remote worker [^\n]*")
"""Where in gloo's sources an error was found, and its advice, which says less than the first cause."""
POD_DEADLINE = "DeadlineExceeded"
"""The kubelet's word for a pod whose own activeDeadlineSeconds are over."""


def how_rank_ended(kind: str, report: RankReport) -> str:
    """`raised ValueError: bad shape`, `was killed by SIGKILL`, `cannot start: ...`."""
    error = report.get("error")
    if error:
        said = shortened(error.get("message") or "")
        named = f"{error.get('type') or 'an error'}: {said}".rstrip(": ")
        if kind == contract.END_OOM:
            named = f"out of memory. {error.get('message') or ''}".strip()
        if kind == contract.END_SIGNAL and report.get("signal"):
            return f"{how_process_ended(None, report.get('signal'))} ({named})"
        if kind == contract.END_SIGNAL and error.get("type") == contract.LOADER_KILLED:
            return f"lost its DataLoader: {error.get('message') or ''}"
        if kind == contract.END_EXIT and error.get("type") == "SystemExit":
            return f"{how_process_ended(report.get('exit_code'), None)}: {said}".removesuffix(": ")
        if kind == contract.END_OOM and report.get("exit_code") not in (None, 128 + signal.SIGKILL):
            return "lost a process that was killed by SIGKILL: " + named
        return _BEFORE_ERROR.get(kind, "raised ") + named
    if kind in _WITHOUT_ERROR:
        return _WITHOUT_ERROR[kind]
    ended = how_process_ended(report.get("exit_code"), report.get("signal"))
    return f"cannot start: its command {ended}" if kind == contract.END_START else ended


def shortened(text: str) -> str:
    """A message, or a traceback that ends with it, without what gloo says beside what happened."""
    return _GLOO_ADVICE.sub("", _GLOO_SOURCE.sub("", text))


def how_process_ended(exit_code: int | None, number: int | None) -> str:
    """`was killed by SIGKILL`, `ended with exit code 3`."""
    if number is None and exit_code is not None and 128 < exit_code < 128 + 65:
        number = exit_code - 128
    if number:
        try:
            return f"was killed by {signal.Signals(number).name}"
        except ValueError:
            return f"was killed by signal {number}"
    return "ended without an exit code" if exit_code is None else f"ended with exit code {exit_code}"


def how_pod_ended(pod: PodView) -> str:
    """With the kubelet's word, if it has one."""
    if pod.reason == POD_DEADLINE:
        return "was ended by the kubelet: the activeDeadlineSeconds of the job's pod template are over"
    if pod.reason == EVICTED:
        return f"was evicted by the kubelet ({over_own_limit(pod.message) or pod.message or 'it does not say why'})"
    refused = is_refused_by_node(pod)
    node = f"its node {pod.node}" if pod.node else "its node"
    how = f"was not taken by the kubelet of {node}" if refused else how_process_ended(pod.exit_code, pod.signal)
    words = ": ".join(word for word in (pod.reason, pod.message) if word and word != "Error")
    return f"{how} ({words})" if words else how

"""The logs of a job as they are now: the lines of its pods, merged in the order of their times.

Called by `tj logs` without -f; `follow.py` is the other way. Waits for nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from trainjob.launch.cluster import jobs_api, pod_log
from trainjob.launch.cluster.api import Api, ApiError, Manifest
from trainjob.launch.outcome import log_choice as ranks
from trainjob_api import defaults
from trainjob_api.v1alpha1 import TrainJob

MERGED_PODS = 32
"""So many logs are read side by side; of more pods one is printed after the other."""


def lines(
    api: Api,
    job: TrainJob,
    pods: list[Manifest],
    selection: ranks.Selection,
    *,
    tail: int | None = None,
    previous: bool = False,
) -> Iterator[str]:
    """The lines of those ranks. `previous`: of the containers before their last restart."""
    wanted = [pod for pod in pods if ranks.concerns(job, jobs_api.slot(pod), selection)]
    streams = [_stamped(api, job, pod, selection, tail=tail, previous=previous) for pod in wanted]
    merged = (
        heapq.merge(*streams, key=lambda entry: entry[0])
        if len(streams) <= MERGED_PODS
        else (entry for stream in streams for entry in stream)
    )
    return (text for _, text in merged)


def _stamped(
    api: Api, job: TrainJob, pod: Manifest, selection: ranks.Selection, *, tail: int | None, previous: bool
) -> Iterator[tuple[str, str]]:
    """(time, line as it is shown); a line without a time keeps the place behind the one before."""
    params = {
        "timestamps": "true",
        **({} if tail is None else {"tailLines": str(tail)}),
        **({"previous": "true"} if previous else {}),
    }
    index = None if defaults.uses_agent(job.spec) else ranks.first_rank(job, jobs_api.slot(pod))
    at = ""
    try:
        for line in pod_log.read(api, pod_log.target(pod), **params):
            stamp, _, text = line.partition(" ")
            moment = pod_log.moment(stamp)
            at, text = (moment, text) if moment else (at, line)
            shown = ranks.shown(text, selection, pod=pod["metadata"]["name"], index=index)
            if shown is not None:
                yield at, shown
    except ApiError as error:
        if error.status not in (400, 404):  # 400: it has not started, or has no container before; 404: it went away
            raise

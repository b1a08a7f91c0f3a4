"""Follows the log of one container across broken connections and restarts of the container, each line once.

`job_log.py` runs one of these per pod in a thread. The kubelet's timestamps tell what has been seen; a connection that
stays silent is opened anew, since a dead one looks the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from trainjob.launch.cluster import jobs_api
from trainjob.launch.cluster.api import Api, ApiError, Manifest
from trainjob_api import contract

RETRY_S = 1.0
IDLE_S = 30.0
_FORBIDDEN = (401, 403)
"""What the API server answers who may not read it."""


class Target(NamedTuple):
    """A container, by its pod's UID: a new pod of that name is another target."""

    namespace: str
    pod: str
    uid: str
    container: str


def target(pod: Manifest) -> Target:
    """The container that trains, of a pod."""
    containers = [str(container["name"]) for container in pod["spec"]["containers"]]
    name = contract.TRAINER_CONTAINER if contract.TRAINER_CONTAINER in containers else containers[0]
    return Target(pod["metadata"]["namespace"], pod["metadata"]["name"], pod["metadata"]["uid"], name)


def container_status(pod: Manifest, name: str) -> Manifest:
    """What the kubelet says of a container; empty before it says anything."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((status for status in statuses if status.get("name") == name), {})


def has_ended(pod: Manifest) -> bool:
    """Whether its containers will write no more."""
    phase = (pod.get("status") or {}).get("phase")
    return phase in ("Succeeded", "Failed")


class Once:
    """Lets each line of a log through once, by its timestamp, over several readings of it."""

    def __init__(self) -> None:
        self._seen = ""
        self._floor = ""

    def begin(self) -> str | None:
        """A reading begins; from when on it is to be asked for (whole seconds)."""
        self._floor = self._seen
        return f"{self._seen[:19]}Z" if self._seen else None

    def text(self, line: str) -> str | None:
        """The line without its timestamp; None when it has come before."""
        stamp, _, text = line.partition(" ")
        key = moment(stamp)
        if not key:
            return line
        if self._floor and key <= self._floor:
            return None
        self._seen = max(self._seen, key)
        return text


def moment(stamp: str) -> str:
    """An RFC 3339 time in UTC with nine digits behind the point, so that texts compare as times; "" for anything
    else.
    """
    if len(stamp) < 20 or not stamp.endswith("Z") or stamp[10] != "T":
        return ""
    return f"{stamp[:19]}.{stamp[20:-1]:0<9}"


class PodLog:
    """Reads one container's log to its end."""

    def __init__(self, api: Api, what: Target, *, tail: int | None, stopped: threading.Event) -> None:
        self._api, self._target, self._tail, self._stopped = api, what, tail, stopped
        self._once = Once()
        self._restarts: int | None = None

    def follow(self, emit: Callable[[str], None]) -> None:
        """Hand on every line until the pod is over or gone. Raises ApiError: it may not be read."""
        broken = False
        while not self._stopped.is_set():
            pod = self._pod()
            if pod is None:
                return
            restarts = int(container_status(pod, self._target.container).get("restartCount") or 0)
            if broken and self._restarts is not None and restarts > self._restarts:
                self._read(emit, previous="true")
            self._restarts = restarts
            ended = has_ended(pod)
            outcome = self._read(emit, follow="true")
            if ended and outcome != "broken":
                return
            broken = outcome == "broken"
            self._stopped.wait(RETRY_S)

    def _pod(self) -> Manifest | None:
        """The pod; None when it is gone. Waits while no answer comes."""
        while not self._stopped.is_set():
            try:
                pod = self._api.get(jobs_api.core(self._target.namespace, "pods", self._target.pod))
            except ApiError as error:
                if error.absent:
                    return None
                if not error.passing:
                    raise
                self._stopped.wait(RETRY_S)
            else:
                return pod if pod["metadata"]["uid"] == self._target.uid else None
        return None

    def _read(self, emit: Callable[[str], None], **params: str) -> Literal["end", "refused", "broken"]:
        """Read what there is. refused: there is no log (the container has not started, the pod is gone); broken:
        there may be more.
        """
        try:
            for line in self._lines(**params):
                emit(line)
                if self._stopped.is_set():
                    break
        except ApiError as error:
            if error.status in _FORBIDDEN:
                raise
            return "broken" if error.passing else "refused"
        return "end"

    def _lines(self, **params: str) -> Iterator[str]:
        since = self._once.begin()
        if since is not None:
            params["sinceTime"] = since
        elif self._tail is not None:
            params["tailLines"] = str(self._tail)
        for line in read(self._api, self._target, timestamps="true", **params):
            text = self._once.text(line)
            if text is not None:
                yield text


def read(api: Api, what: Target, **params: str) -> Iterator[str]:
    """The lines of a container's log."""
    return api.lines(
        f"{jobs_api.core(what.namespace, 'pods', what.pod)}/log", idle_s=IDLE_S, container=what.container, **params
    )

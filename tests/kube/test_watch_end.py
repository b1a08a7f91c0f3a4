"""How one watch makes way for the next: nothing that the old one still says comes after what the new one lists."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from trainjob_operator.cluster import Seen
from trainjob_operator.k8s import host
from trainjob_operator.k8s.bridge import Ears
from trainjob_operator.k8s.kubeapi import Connection
from trainjob_operator.process.settings import Settings, read_settings

POD = {"POD_NAME": "op", "POD_NAMESPACE": "op", "POD_IP": "192.0.2.1"}
GHOST = Seen("Pod", ("default", "digits"), {"metadata": {"name": "digits-0", "uid": "uid-0", "resourceVersion": "7"}})

Run = Callable[[Settings, Any, threading.Event, bool], None]


def breaking(then: Callable[[Any, threading.Event], None]) -> Run:
    """A thread in which the API server refuses a watch as too old, one of kopf's tasks breaks by that, and others
    go on.
    """

    def run(settings: Settings, bridge: Any, halt: threading.Event, nodes: bool) -> None:
        async def refused() -> None:
            raise RuntimeError("410")

        async def main() -> None:
            task = asyncio.create_task(refused())
            await asyncio.wait({task})
            bridge._tell(lambda: bridge._lost(410))
            host._gave_up(bridge, task)

        asyncio.run(main())
        then(bridge, halt)
        bridge.over("")

    return run


async def watched(said: list[str]) -> None:
    """One watch from its beginning to its end."""

    async def connect() -> Connection:
        raise AssertionError("nobody asks for it")

    ears = Ears(
        tell=lambda seen: said.append(seen.manifest["metadata"]["name"] if isinstance(seen, Seen) else seen.name),
        missed=lambda: None,
        alive=lambda: None,
        blind=lambda why: None,
        on_call=lambda *call: None,
    )
    settings = read_settings(["--runtime-image", "x"], POD)
    gone = await host._watch_once(settings, connect, ears, asyncio.Event(), also=())
    assert not gone
    said.append("the watch is over")


def test_a_watch_is_over_when_its_thread_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def slowly(bridge: Any, halt: threading.Event) -> None:
        halt.wait()
        threading.Event().wait(0.2)
        bridge.tell(GHOST)

    said: list[str] = []
    monkeypatch.setattr(host, "STOP_S", 60.0)
    monkeypatch.setattr(host, "_run", breaking(slowly))

    async def main() -> None:
        await watched(said)
        await asyncio.sleep(0.5)  # what comes too late comes now

    asyncio.run(main())
    assert said == ["digits-0", "the watch is over"]


def test_nobody_hears_a_thread_that_outlives_its_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    late, told = threading.Event(), threading.Event()

    def for_long(bridge: Any, halt: threading.Event) -> None:
        late.wait()
        bridge.tell(GHOST)
        bridge.tell(GHOST)
        told.set()

    said: list[str] = []
    monkeypatch.setattr(host, "STOP_S", 0.01)
    monkeypatch.setattr(host, "_run", breaking(for_long))

    async def main() -> None:
        await watched(said)
        late.set()
        await asyncio.to_thread(told.wait)
        await asyncio.sleep(0)

    asyncio.run(main())
    assert said == ["the watch is over"]

"""The caller's side of a local job: a Ctrl-C at the worst of moments."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from support.jobs import job
from support.patience import HANG_S
from trainjob.launch.local import caller as caller_side
from trainjob.launch.local.caller import Caller, LocalEvent
from trainjob.launch.local.drive import Stop
from trainjob.screen.asked import Asker
from trainjob_api.v1alpha1 import TrainJob


class Interrupted(queue.SimpleQueue[Any]):
    """Ctrl-C comes between the end of the job being taken out of it and being looked at."""

    pressed = False

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if self.pressed and self.empty():
            pytest.fail("it waits for what nobody puts there any more")
        found = super().get(block, timeout)
        if found is None and not self.pressed:
            self.pressed = True
            raise KeyboardInterrupt
        return found


class Drives:
    """A job that is over at once, or cannot be driven."""

    asked_to_stop = False

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def run(self, publish: Callable[..., None]) -> TrainJob:
        if self._error is not None:
            raise self._error
        return job()

    def stop(self, how: Stop) -> None:
        """There is nothing left to stop."""


def records(**means: Any) -> Any:
    """A recorder with nothing to write."""
    return SimpleNamespace(**{"due_s": None, "catch_up": lambda: None, **means})


@pytest.mark.parametrize("error", [None, ValueError("broken")])
def test_a_ctrl_c_as_the_job_ends_does_not_wait_for_its_end_for_ever(error: Exception | None) -> None:
    recorder = records()
    driver: Any = Drives(error)
    caller = Caller(driver, lambda event: None, recorder, Asker.SHELL)
    caller._events = Interrupted()
    if error is None:
        assert caller.run() == (job(), True)
    else:
        with pytest.raises(ValueError, match="broken"):
            caller.run()


def test_what_is_due_is_written_also_where_lines_come_without_a_pause() -> None:
    """`tj list` showed the state of before for as long as ranks printed faster than it could be shown."""
    done: list[str] = []
    recorder = records(due_s=0.0, line=done.append, catch_up=lambda: done.append("written"))
    driver: Any = Drives(None)
    caller = Caller(driver, lambda event: None, recorder, Asker.SHELL)
    for text in ("one", "two"):
        caller._put(LocalEvent(kind="line", text=text))
    caller.run()
    assert done[:3] == ["one", "written", "two"]


class Stays:
    """A job that ends when it is killed, and a hand that presses Ctrl-C again while the first is answered."""

    asked_to_stop = False

    def __init__(self) -> None:
        self.stops: list[Stop] = []
        self._killed = threading.Event()

    def run(self, publish: Callable[..., None]) -> TrainJob:
        publish("note", text="it runs")
        assert self._killed.wait(HANG_S)
        return job()

    def stop(self, how: Stop) -> None:
        self.stops.append(how)
        if how is Stop.CLEANLY:
            signal.raise_signal(signal.SIGINT)
        else:
            self._killed.set()


def test_a_ctrl_c_that_the_listener_swallows_is_not_the_last_one() -> None:
    """A library that prints an exception and goes on, say."""
    heard: list[str] = []

    def listen(event: LocalEvent) -> None:
        heard.append(event.text)
        if event.text == "it runs":
            with suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            caller.note("it goes on")
        elif event.text == "it goes on":
            signal.raise_signal(signal.SIGINT)

    recorder = records()
    driver: Any = Stays()
    caller = Caller(driver, listen, recorder, Asker.SHELL)
    assert caller.run() == (job(), True)
    assert heard[:2] == ["it runs", "it goes on"] and driver.stops == [Stop.CLEANLY, Stop.AT_ONCE]


def test_a_second_ctrl_c_as_the_first_is_answered_kills_with_a_word() -> None:
    said: list[str] = []

    def listen(event: LocalEvent) -> None:
        said.append(event.text)
        if event.text == "it runs":
            signal.raise_signal(signal.SIGINT)

    recorder = records()
    driver: Any = Stays()
    assert Caller(driver, listen, recorder, Asker.SHELL).run() == (job(), True)
    assert driver.stops == [Stop.CLEANLY, Stop.AT_ONCE]
    assert [text.partition(":")[0] for text in said] == ["it runs", "stopping", "killing the workers"]


class PrintsMuch:
    """A job whose rank prints as long as there is room for it."""

    asked_to_stop = False

    def __init__(self) -> None:
        self.is_full: Callable[[], bool] = lambda: False
        self.printed = 0
        self.was_full = threading.Event()

    def run(self, publish: Callable[..., None]) -> TrainJob:
        while not self.is_full():
            self.printed += 1
            publish("line", text=f"r00 | {self.printed}-" + "-" * 1000, pod="digits-0")
            assert self.printed < 100
        self.was_full.set()
        return job()


def test_the_lines_that_wait_for_an_output_that_stands_still_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caller_side, "LINES_WAITING", 10_000)
    shown: list[str] = []

    def listen(event: LocalEvent) -> None:
        assert prints.was_full.wait(HANG_S), "a reader that has stopped"
        shown.append(event.text)

    prints = PrintsMuch()
    driver: Any = prints
    caller = Caller(driver, listen, records(line=lambda text: None), Asker.SHELL)
    caller.run()
    assert prints.printed < 12
    assert [int(text.partition(" | ")[2].partition("-")[0]) for text in shown] == list(range(1, prints.printed + 1))
    assert not prints.is_full()


class Prints(Stays):
    """A job whose rank prints until it is stopped."""

    def run(self, publish: Callable[..., None]) -> TrainJob:
        publish("line", text="r00 | one", pod="digits-0")
        publish("line", text="r00 | two", pod="digits-0")
        assert self._killed.wait(HANG_S)
        return job()

    def stop(self, how: Stop) -> None:
        self._killed.set()


def test_a_ctrl_c_loses_no_line() -> None:
    """Also one that comes as a line is put into the job's output, before it is shown."""
    shown: list[str] = []

    def record(text: str) -> None:
        if text == "r00 | one":
            signal.raise_signal(signal.SIGINT)

    recorder = records(line=record)
    driver: Any = Prints()
    assert Caller(driver, lambda event: shown.append(event.text), recorder, Asker.SHELL).run() == (job(), True)
    assert [text.partition(":")[0] for text in shown] == ["r00 | one", "r00 | two", "stopping"]

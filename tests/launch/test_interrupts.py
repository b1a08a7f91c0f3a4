"""Ctrl-C and its kin while a job ends: held, and then either answered by that end or handed on."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from support.patience import HANG_S
from trainjob.launch.local import interrupts as of_interrupts
from trainjob.launch.local.interrupts import interrupts

ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
USUAL = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    """A program without handlers of its own."""
    before = {number: signal.signal(number, handler) for number, handler in USUAL.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def handlers() -> dict[signal.Signals, object]:
    return {number: signal.getsignal(number) for number in ALL}


@pytest.mark.parametrize("number", ALL)
def test_what_is_held_is_answered_by_the_end_of_a_process(number: signal.Signals) -> None:
    with interrupts(ends=True):
        signal.raise_signal(number)
    assert handlers() == USUAL


def ended_by(source: str) -> int:
    """A process's exit code, or minus its signal's number."""
    begin = "import os, signal\nfrom trainjob.launch.local.interrupts import interrupts\n"
    return subprocess.run([sys.executable, "-c", begin + source], timeout=HANG_S, check=False).returncode


def test_a_program_that_goes_on_is_told_to_end_once_its_job_has_ended() -> None:
    """By a batch system, say; a Ctrl-C was meant for the job."""
    assert ended_by("with interrupts(): signal.raise_signal(signal.SIGTERM)") == -signal.SIGTERM
    assert ended_by("with interrupts(): signal.raise_signal(signal.SIGINT)") == 0


def test_the_child_of_a_fork_answers_as_it_always_does() -> None:
    source = (
        "with interrupts():\n    child = os.fork()\n    if child == 0:\n"
        "        signal.raise_signal(signal.SIGTERM)\n        os._exit(3)\n"
        "    assert os.waitpid(child, 0)[1] == signal.SIGTERM\n"
    )
    assert ended_by(source) == 0


def test_who_is_not_heard_and_presses_again_ends_what_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt), interrupts() as signals:
        for _ in range(5):
            signal.raise_signal(signal.SIGINT)  # close together: the first is going to be heard
        monkeypatch.setattr(of_interrupts, "PATIENCE_S", 0.0)
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            assert handlers() == USUAL
    assert signals.held


def test_one_that_a_listener_swallows_is_not_the_last_that_is_heard() -> None:
    with interrupts() as signals:
        for _ in range(3):
            signals.let_through()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)


def test_a_job_inside_a_listener_leaves_them_as_they_were() -> None:
    with interrupts() as outer:
        outer.let_through()
        with interrupts() as inner:
            inner.held = True
        assert not outer.held
        outer.held = True
        with interrupts() as inner:
            inner.let_through()
        assert outer.held


def test_who_keeps_a_handler_of_it_has_what_was_there_before() -> None:
    own: list[int] = []
    signal.signal(signal.SIGHUP, lambda number, _: own.append(number))
    with interrupts():
        kept = {number: signal.getsignal(number) for number in ALL}
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, kept[number])
    signal.raise_signal(signal.SIGHUP)
    assert own == [signal.SIGHUP]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_each_of_those_that_are_held_is_raised_by_itself() -> None:
    raised = []
    with interrupts(ends=True) as signals:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        for _ in range(3):
            try:
                signals.let_through()
            except KeyboardInterrupt as error:
                raised.append(str(error))
                signal.raise_signal(signal.SIGHUP)  # while that one is handled
                assert signals.held
    assert raised == ["SIGINT", "SIGTERM", "SIGHUP"]


def test_where_there_was_no_end_it_comes_afterwards() -> None:
    with pytest.raises(KeyboardInterrupt), interrupts():
        signal.raise_signal(signal.SIGINT)
        raise ValueError("it could not be started")
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"), interrupts() as signals:
        signals.let_through()
        signal.raise_signal(signal.SIGTERM)
    assert handlers() == USUAL


def test_a_handler_of_the_programs_own_is_called_when_it_disturbs_nothing_any_more() -> None:
    called: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: called.append(number))
    own = handlers()
    with interrupts() as signals:
        signals.let_through()
        signal.raise_signal(signal.SIGTERM)
        assert called == [signal.SIGTERM], "no end has begun"
        signals.held = True
        signal.raise_signal(signal.SIGTERM)
        assert called == [signal.SIGTERM]
    assert called == [signal.SIGTERM] * 2 and handlers() == own


def test_one_that_comes_as_handlers_are_put_back_takes_none_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: called.append(number))
    own, put = handlers(), signal.signal

    def put_as_one_presses(number: int, handler: Any) -> None:
        put(number, handler)
        if number == signal.SIGTERM:
            signal.raise_signal(signal.SIGINT)

    with interrupts(ends=True):
        signal.raise_signal(signal.SIGTERM)
        monkeypatch.setattr(signal, "signal", put_as_one_presses)
    monkeypatch.undo()
    assert called == [signal.SIGTERM] and handlers() == own


def test_what_was_answered_is_not_raised_any_more() -> None:
    with interrupts() as signals:
        signal.raise_signal(signal.SIGINT)
        signals.forget()
        signals.let_through()


def test_one_that_is_ignored_stays_so() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with interrupts() as signals:
        signals.let_through()
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_who_has_them_for_longer_has_them_to_its_own_end() -> None:
    with interrupts() as outer:
        with interrupts() as inner:
            assert inner is outer
        signal.raise_signal(signal.SIGINT)
    assert handlers() == USUAL


def test_a_thread_leaves_those_of_the_main_thread_alone() -> None:
    found = []

    def work() -> None:
        with interrupts() as signals:
            signals.let_through()
            found.append(handlers())

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(HANG_S)
    assert found == [USUAL]

"""Ctrl-C and its kin while a job ends: held, and then either answered by that end or handed on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from support.patience import HANG_S
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
def test_what_is_held_is_answered_by_the_end(number: signal.Signals) -> None:
    with interrupts():
        signal.raise_signal(number)
    assert handlers() == USUAL


def test_each_of_those_that_are_held_is_raised_by_itself() -> None:
    raised = []
    with interrupts() as signals:
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

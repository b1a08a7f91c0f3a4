"""What holds for every test: property tests draw the same examples each time, no clock judges them, and long tests
begin first. Processes that tests start keep the modules that they compile. What collection made is no garbage.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

from support import prefork, whole_parse

prefork.apply()
whole_parse.apply()
# Images of containers often forbid Python to keep compiled modules. Tests start thousands of processes: each would
# compile ours again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

from support import in_time, skips, steady_examples  # noqa: E402
from support.apiserver import api_namespace, apiserver, build_before  # noqa: E402

__all__ = ["api_namespace", "apiserver"]

settings.register_profile(
    "steady", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
# Hypothesis asks no seed where it derandomizes: `--hypothesis-seed` alone would draw the usual examples once more.
settings.register_profile("seeded", settings.get_profile("steady"), derandomize=False)
settings.load_profile("steady")
steady_examples.pin()


STATE = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """Jobs of tests are no jobs of this machine's user (nor of other tests, see below). Ctrl-C works for what tests
    start, also when they themselves were started by `nohup` or `&`: an ignored signal would be inherited.
    """
    if config.getoption("hypothesis_seed", None) is not None:
        settings.load_profile("seeded")
    state = tempfile.mkdtemp(prefix="state-of-tests-")
    os.environ["XDG_STATE_HOME"] = config.stash[STATE] = state
    config.add_cleanup(lambda: shutil.rmtree(state, ignore_errors=True))
    for number in (signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and test items stay to the end: the garbage collector looks at them neither now nor in any test."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Each test has a registry of local jobs of its own; Kubernetes is built before the first test that needs it."""
    if _takes_long(item) and in_time.is_over(time.time()):
        pytest.skip(in_time.REASON)
    os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(dir=item.config.stash[STATE])
    build_before(item)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """`-n auto`: two more than there are cores, for tests of real processes wait a part of their time."""
    return (os.cpu_count() or 1) + 2


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many tests were skipped, by reason: the last that is read."""
    reasons = (str(report.longrepr[2]) for report in terminalreporter.getreports("skipped") if report.longrepr)
    for line in skips.told(reasons):
        terminalreporter.write_line(line)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of several pytest workers none should be left with a long test at the end: short ones come last. Alone, the
    order stays as it is written.
    """
    in_time.order(items, lambda item: str(item.path))
    if os.environ.get("PYTEST_XDIST_WORKER"):
        items.sort(key=lambda item: not _takes_long(item))


def _takes_long(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None

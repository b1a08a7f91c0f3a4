"""What scripts had imported by their first step, imported ahead: package by package, each looked at when it is there.

Beside the training, whose processors it must not take: this process works for a while and sleeps for three times as
long. (A process that lowers its priority could not raise it again for its forks.)
"""

from __future__ import annotations

import contextlib
import importlib
import signal
import sys
import time
from itertools import groupby
from typing import AbstractSet, Iterator, List

from trainjob.session import imported, torch_folder
from trainjob.session.warm import fitness, places, preload
from trainjob_api import module_names

WORK_S, REST_S = 0.02, 0.06


class Unfit(Exception):
    """A package that may not be imported ahead; the text says why."""

    def __init__(self, package: str, why: str) -> None:
        super().__init__(why)
        self.package = package


def bring(
    path: str, without: AbstractSet[str], folder: str, before: fitness.Before, *, beside_training: bool = True
) -> List[str]:
    """Import the modules that the file lists, package by package, but for these. Names that cannot be found any more
    are passed over. Those that had to be named, since no other has brought them. Raises Unfit.
    """
    known, brought = frozenset(sys.modules), []
    names = [
        name for name in module_names.listed(path) if _package(name) not in without and imported.may_be_ahead(name)
    ]
    with _slowly() if beside_training else contextlib.nullcontext():
        for package, of_it in groupby(names, _package):
            # What a module imports stands before it: from the last one on, few have to be named.
            for name in reversed([*of_it]):
                if name not in sys.modules and _bring(name):
                    brought.append(name)
            torch_folder.take_away()
            why = fitness.unfit_so_far(before) or preload.strange(known, folder)
            if why is not None:
                raise Unfit(package, why)
    return brought


def _bring(name: str) -> bool:
    """Whether it is there."""
    try:
        with places.watched() as read:
            importlib.import_module(name)
        if read:
            raise Unfit(_package(name), f"{name} reads {read[0]} while it is imported, which each rank has its own of")
    except Unfit:
        raise
    except ImportError:
        return False  # a module that is made up as its package runs, or one that the script has come to by another way
    except BaseException as error:  # a module may raise anything, SystemExit included
        raise Unfit(_package(name), f"the import of {name} failed: {type(error).__name__}: {error}") from None
    return True


def _package(name: str) -> str:
    return name.partition(".")[0]


@contextlib.contextmanager
def _slowly() -> Iterator[None]:
    """A timer of processor time puts this process to sleep."""
    handler = signal.signal(signal.SIGPROF, lambda number, frame: time.sleep(REST_S))
    signal.siginterrupt(signal.SIGPROF, False)
    signal.setitimer(signal.ITIMER_PROF, WORK_S, WORK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)

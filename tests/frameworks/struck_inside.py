"""Runs a script as it is, and in each of its first attempts kills a rank somewhere inside what a library does to save or
to load.

`tj run tests/frameworks/struck_inside.py --workers 2 -- SEED KILLS CALLS SAVES LOADS script.py arguments`

SAVES and LOADS are functions: MODULE:NAME.NAME... An odd attempt is struck in the second call of SAVES, an even one in
the first of LOADS. Which rank, and behind how many of the function calls that are made there (CALLS: at most, of SAVES),
is drawn from SEED and the number of the attempt. KILLS 0: nobody is killed, and each rank says how many calls SAVES
makes.
"""

import importlib
import os
import random
import runpy
import signal
import sys
from typing import Any

import trainjob

_EVENTS = ("call", "c_call")
_LOADS_BITS = 12
"""Of the largest number of calls that are waited for while something is loaded: small ones come as often as large ones."""


def strike(seed: str, kills: int, calls: int, saves: str, loads: str) -> None:
    """The kill of this attempt: by SIGKILL, nothing of Python's runs any more."""
    context = trainjob.get_context()
    drawn = random.Random(f"{seed}-{context.attempt}")
    is_struck = context.attempt <= kills and context.rank == drawn.randrange(context.world_size)
    if context.attempt % 2 or not kills:
        _strike_inside(saves, 2, drawn.randrange(1, calls + 1) if is_struck else 0, tells=not kills)
    else:
        _strike_inside(loads, 1, int(2 ** drawn.uniform(0, _LOADS_BITS)) if is_struck else 0, tells=False)


def _strike_inside(target: str, at_call: int, moment: int, *, tells: bool) -> None:
    """`moment` 0: not at all."""
    module, _, path = target.partition(":")
    *owners, name = path.split(".")
    owner: Any = importlib.import_module(module)
    for each in owners:
        owner = getattr(owner, each)
    plain = getattr(owner, name)
    entered = 0

    def struck(*arguments: Any, **named: Any) -> Any:
        nonlocal entered
        entered += 1
        made = 0

        def count(_: Any, event: str, __: Any) -> None:
            nonlocal made
            made += event in _EVENTS
            if made == moment and entered == at_call:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.setprofile(count)
        try:
            found = plain(*arguments, **named)
        finally:
            sys.setprofile(None)
        if moment and entered == at_call:  # it makes fewer calls this time
            os.kill(os.getpid(), signal.SIGKILL)
        if tells:
            print(f"{name} makes {made} calls on rank {trainjob.get_context().rank}", flush=True)
        return found

    setattr(owner, name, struck)


if __name__ == "__main__":
    _, seed, kills, calls, saves, loads, script, *arguments = sys.argv
    sys.argv = [script, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    strike(seed, int(kills), int(calls), saves, loads)
    runpy.run_path(script, run_name="__main__")

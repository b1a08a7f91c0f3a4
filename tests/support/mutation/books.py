"""Mistakes in where a job's time is said to have gone. One entry each: name, file, what stands there, what is put in its
place, the test that sees it.
"""

from __future__ import annotations

from support.mutation.mutant import Mutant

FILE = "operator/trainjob_operator/core/accounting.py"
TEST = "tests/core/test_accounting.py::"
ONCE = TEST + "test_every_millisecond_is_dealt_out_once"
FAILURE = TEST + "test_a_failure_costs_what_was_not_saved_and_the_time_until_ranks_step_again"

MUTANTS = (
    Mutant("time after a break is nowhere", FILE, "    parts[DOWN] += total - end\n", "", ONCE),
    Mutant(
        "a checkpoint's stall is productive too",
        FILE,
        '        rest -= parts["checkpoint_stall"]\n',
        "",
        ONCE,
    ),
    Mutant(
        "a stall is longer than the time in which it was",
        FILE,
        '        parts["stalled"] = min(rest, max(0, work.stalled))\n',
        '        parts["stalled"] = max(0, work.stalled)\n',
        ONCE,
    ),
    Mutant(
        "work begins before the time that is dealt out",
        FILE,
        "        began = _within(work.began, 0, end)\n",
        "        began = min(work.began, end)\n",
        ONCE,
    ),
    Mutant(
        "what was saved is lost too",
        FILE,
        "        kept = began if work.saved is None else _within(work.saved, began, end)\n",
        "        kept = began\n",
        TEST + "test_what_was_done_since_the_newest_checkpoint_is_lost",
    ),
    Mutant(
        "a job that completes has lost its last steps",
        FILE,
        "max(0, work.idle))) if loses else 0\n        parts[PRODUCTIVE]",
        "max(0, work.idle)))\n        parts[PRODUCTIVE]",
        TEST + "test_without_a_checkpoint_all_is_lost_and_nothing_once_it_is_complete",
    ),
    Mutant(
        "the time until ranks step again after a failure is a start",
        FILE,
        "        return STARTING if attempt.cause in _FRESH_STARTS else DOWN\n",
        "        return STARTING\n",
        FAILURE,
    ),
    Mutant(
        "suspended time counts against the ratio",
        FILE,
        "    active = sum(whole.values()) - whole[SUSPENDED]\n",
        "    active = sum(whole.values())\n",
        TEST + "test_suspended_time_is_its_own_and_outside_the_ratio",
    ),
    Mutant(
        "suspended time is a start",
        FILE,
        "        return SUSPENDED\n",
        "        return STARTING\n",
        TEST + "test_suspended_time_is_its_own_and_outside_the_ratio",
    ),
    Mutant(
        "time in which ranks hang is productive",
        FILE,
        "_stalled_ms(turn, since, broke)),",
        "0),",
        TEST + "test_time_in_which_ranks_hang_is_not_productive",
    ),
    Mutant(
        "what breaks at its imports has lost steps",
        FILE,
        "    return None if broke is not None and elapsed(broke, attempt.running_at) < IMPORTS_S else attempt.running_at\n",
        "    return attempt.running_at\n",
        TEST + "test_what_breaks_at_its_imports_has_lost_no_steps",
    ),
)

"""Mistakes in the parent that the workers of a local job share. As in `trackers`."""

from __future__ import annotations

from support.mutation.mutant import Mutant

FILE = "worker-image/trainjob/launch/local/kept/shared.py"
TEST = "tests/launch/test_shared.py::"

MUTANTS = (
    Mutant(
        "a worker with a variable of its own has the shared parent's",
        FILE,
        "            return self._made if same else None",
        "            return self._made",
        TEST + "test_a_worker_with_a_variable_of_its_own_has_not",
    ),
    Mutant(
        "a shared parent that is silent is asked again",
        FILE,
        "            self._never, self._made = True, None\n            with",
        "            self._made = None\n            with",
        TEST + "test_one_that_is_gone_or_silent_is_asked_once",
    ),
    Mutant(
        "a worker that is given up ends the others' parent",
        FILE,
        "            elif not taking.given_up:",
        "            else:",
        TEST + "test_who_gives_up_leaves_it_to_the_others",
    ),
    Mutant(
        "a shared parent outlives its job",
        FILE,
        "                making.kill(self._made.process, self._made.door)\n                self._made = None",
        "                self._made = None",
        TEST + "test_after_the_jobs_end_there_is_none",
    ),
    Mutant(
        "a shared parent that cannot be started is tried for each worker",
        FILE,
        "                self._never = True  # unless it is there at the end of this",
        "                pass",
        TEST + "test_one_that_cannot_be_started_is_not_tried_again",
    ),
    Mutant(
        "a job that may grow shares no parent",
        FILE,
        "        most = job.spec.workers if job.spec.elastic is None else job.spec.elastic.max_workers",
        "        most = job.spec.workers",
        TEST + "test_it_is_for_more_than_one_worker",
    ),
)

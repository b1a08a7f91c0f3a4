"""Mistakes in whose turn it is to feed a tracker. One entry each: name, file, what stands there, what is put in its place, the test that sees it."""

from __future__ import annotations

from support.mutation.mutant import Mutant

FOLDER = "worker-image/trainjob/trackers/"
CLAIM = "tests/trackers/test_claim.py::"
TURN = "tests/trackers/test_turn.py::"
HANDOVER = "tests/trackers/test_handover.py::"

MUTANTS = (
    Mutant(
        "an older run takes a tracker's turn",
        FOLDER + "claim.py",
        "    if (newest.run, newest.attempt) > (run, attempt):",
        "    if False:",
        TURN + "test_two_of_the_same_attempt_the_last_one_feeds_and_an_older_one_never_takes_the_turn_back",
    ),
    Mutant(
        "a dead one is waited for to the end",
        FOLDER + "claim.py",
        "    if unchanged_s >= LEASE_S:",
        "    if False:",
        TURN + "test_a_dead_one_costs_eight_seconds_and_is_told_of_once",
    ),
    Mutant(
        "whose turn it is is not asked before a batch",
        FOLDER + "feed.py",
        "            rows = list(group)\n            self._check()\n",
        "            rows = list(group)\n",
        HANDOVER + "test_one_that_is_cut_off_in_a_batch_ends_it_and_begins_no_other",
    ),
    Mutant(
        "what was recorded is not confirmed",
        FOLDER + "feed.py",
        "                self._turn.confirm(source.mark_of(rows[-1]))",
        "                pass",
        HANDOVER + "test_one_that_comes_back_goes_on_where_the_other_stopped",
    ),
    Mutant(
        "the reports that another had no time for are lost",
        FOLDER + "feed.py",
        "            self._waiting = deque([*missing, *left])",
        "            self._waiting = deque(left)",
        HANDOVER + "test_what_the_run_before_had_no_time_for_is_recorded_by_the_next",
    ),
    Mutant(
        "who waits does not look past one that never fed",
        FOLDER + "claim.py",
        "        if (last := found[-1]) is not None and last.began:\n            break\n",
        "        break\n",
        CLAIM + "test_those_before_are_looked_through_up_to_the_last_that_has_fed",
    ),
    Mutant(
        "a tracker's run is closed with each attempt",
        FOLDER + "process.py",
        "closes=job_is_over)",
        "closes=True)",
        "tests/trackers/test_process.py::test_who_goes_on_in_the_next_attempt_begins_behind_what_is_there",
    ),
    Mutant(
        "the turn is of the first report's attempt, not of the process's",
        FOLDER + "feed.py",
        "self._follows or first.attempt or 0",
        "first.attempt or 0",
        "tests/trackers/test_process.py::test_one_of_an_attempt_before_never_takes_the_turn_back",
    ),
    Mutant(
        "what waits in the queue is read on the storage too",
        FOLDER + "feed.py",
        "            if not self._waiting:  #",
        "            if True:  #",
        "tests/trackers/test_backlog.py::test_what_came_while_its_server_let_it_in_is_written_once",
    ),
    Mutant(
        "a server that gets on is given up at the end",
        FOLDER + "feed.py",
        "left = (TRIES_AT_END if self._written != before else left) - last",
        "left -= last",
        "tests/trackers/test_backlog.py::test_a_server_that_takes_each_batch_late_is_not_given_up_at_the_end",
    ),
    Mutant(
        "a look that failed is the last",
        FOLDER + "process.py",
        "return len(found) < room and not self._follower.failed",
        "return len(found) < room",
        "tests/trackers/test_process.py::test_a_storage_that_is_away_at_the_last_look_is_looked_at_again",
    ),
    Mutant(
        "the rows of an attempt come before those that the one before has left",
        "worker-image/trainjob/agent/barriers/history.py",
        "        for earlier in [one for one in _LEFT",
        "        for earlier in [one for one in ()",
        "tests/agent/test_history.py::"
        "test_what_an_attempt_has_left_is_stored_before_the_rows_of_the_next_once_storage_is_back",
    ),
    Mutant(
        "callbacks do without what could not be read as the job ended",
        "worker-image/trainjob/launch/outcome/hearers.py",
        "            if self._follower is None or not self._follower.failed or not left:",
        "            if True:",
        "tests/launch/test_reports.py::test_a_storage_that_is_away_as_a_job_ends_is_looked_at_again",
    ),
)

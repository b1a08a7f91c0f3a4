"""Mistakes in the agents' machines: course, join, barrier, uploads, endings. One entry each: name, file, what stands there, what is put in its place, the test that sees it."""

from __future__ import annotations

from support.mutation.mutant import Mutant

FOLDER = "worker-image/trainjob/agent/"

MUTANTS = (
    Mutant(
        "ranks are forked twice for one attempt",
        FOLDER + "**/course.py",
        "        if forked_before:\n",
        "        if False:\n",
        "tests/agent/test_course.py::test_what_was_forked_by_an_earlier_agent_is_lost",
    ),
    Mutant(
        "an attempt that forked begins anew",
        FOLDER + "**/course.py",
        "        return self.phase == STOPPED and not self._forked",
        "        return self.phase == STOPPED",
        "tests/agent/test_course.py::test_stopped_before_a_fork_it_may_begin_anew_and_never_after",
    ),
    Mutant(
        "a second end of an attempt counts",
        FOLDER + "**/course.py",
        "        if before in (ENDED, STOPPED) or self.complete:",
        "        if self.complete:",
        "tests/agent/test_course.py::test_a_failure_before_the_forks_is_told_of_ranks_that_never_were",
    ),
    Mutant(
        "an answer that comes late starts ranks",
        FOLDER + "**/course.py",
        "        if self.phase != ASKING:\n            return []\n        self.joined",
        "        if self.phase == NEW:\n            return []\n        self.joined",
        "tests/agent/test_course.py::test_it_asks_is_answered_and_starts_once",
    ),
    Mutant(
        "a join that is settled without its last member",
        FOLDER + "**/join.py",
        "        if self.phase == GATHERING and not self.missing():",
        "        if self.phase == GATHERING and len(self.missing()) <= 1:",
        "tests/agent/test_join.py::test_the_last_member_starts_the_settling",
    ),
    Mutant(
        "a member that left counts as here",
        FOLDER + "**/join.py",
        "            self._members.pop(index, None)\n",
        "            pass\n",
        "tests/agent/test_join.py::test_a_member_that_left_before_all_were_here_is_waited_for_again",
    ),
    Mutant(
        "a join is settled twice",
        FOLDER + "**/join.py",
        "        if self.phase != SETTLING:\n            return []\n        self.phase, self._answer",
        "        if False:\n            return []\n        self.phase, self._answer",
        "tests/agent/test_join.py::test_a_refusal_reaches_all_and_latecomers",
    ),
    Mutant(
        "a member that has begun is waited for in a new join",
        FOLDER + "**/join.py",
        "        if self.phase != GATHERING:\n            return []\n        self.phase, self._refusal",
        "        if True:\n            return []\n        self.phase, self._refusal",
        "tests/agent/test_join.py::test_a_member_that_began_by_an_answer_which_is_forgotten_ends_the_attempt",
    ),
    Mutant(
        "a barrier that is open before its last rank",
        FOLDER + "**/barrier.py",
        "        return self._complete() if len(self._arrivals) == self.world_size else []\n\n    def arrive_together",
        "        return self._complete() if len(self._arrivals) >= self.world_size - 1 else []\n\n    def arrive_together",
        "tests/agent/test_barrier.py::test_the_last_arrival_releases_all",
    ),
    Mutant(
        "a rank that died is waited for",
        FOLDER + "**/barrier.py",
        "        gone = self._gone()\n        if gone:\n",
        "        gone = self._gone()\n        if False:\n",
        "tests/agent/test_barrier.py::test_calling_when_a_rank_is_gone_already_fails_at_once",
    ),
    Mutant(
        "a report is answered before its note is persisted",
        FOLDER + "**/barrier.py",
        "        if phase == STAGING:\n            return self._all_agents(PERSISTING)\n",
        "",
        "tests/agent/test_barrier.py::test_an_end_after_the_last_arrival_does_not_undo_a_save",
    ),
    Mutant(
        "SYNC does not wait for the commit",
        FOLDER + "**/barrier.py",
        "        if any(a.mode == contract.UPLOAD_SYNC for a in self._arrivals.values()):",
        "        if False:",
        "tests/agent/test_barrier.py::test_sync_waits_for_the_commit",
    ),
    Mutant(
        "the first agent's word stages for all",
        FOLDER + "**/barrier.py",
        "        if self._pending:\n            return []\n",
        "",
        "tests/agent/test_barrier.py::test_an_end_after_the_last_arrival_does_not_undo_a_save",
    ),
    Mutant(
        "different calls pass one barrier",
        FOLDER + "**/barrier.py",
        "        if len(self._arrivals) > 1 and not self._matches(arrival):",
        "        if False:",
        "tests/agent/test_barrier.py::test_different_calls_are_a_mismatch_for_all",
    ),
    Mutant(
        "a time-out that never comes",
        FOLDER + "**/barrier.py",
        "        if self._time_limit is not None and now >= self._time_limit[0]:",
        "        if False:",
        "tests/agent/test_barrier.py::test_a_time_out_names_who_did_not_call",
    ),
    Mutant(
        "a third checkpoint is let in",
        FOLDER + "**/uploads.py",
        "        if len(self._queue) >= PLACES:\n            return dropped",
        "        if len(self._queue) > PLACES:\n            return dropped",
        "tests/agent/test_uploads.py::test_the_third_waits_for_the_first_commit",
    ),
    Mutant(
        "a checkpoint is committed before its last share",
        FOLDER + "**/uploads.py",
        "        return [CommitNow(head)] if head is not None and not self._queue[head].waiting else []",
        "        return [CommitNow(head)] if head is not None else []",
        "tests/agent/test_uploads.py::test_the_third_waits_for_the_first_commit",
    ),
    Mutant(
        "commits overtake each other",
        FOLDER + "**/uploads.py",
        "        head = next(iter(self._queue), None)\n",
        "        head = next(reversed(self._queue), None)\n",
        "tests/agent/test_uploads.py::test_the_third_waits_for_the_first_commit",
    ),
    Mutant(
        "a stalled upload is dropped while bytes move",
        FOLDER + "**/uploads.py",
        "            self._bytes[index] = total\n            self._moved_at = now\n",
        "            self._bytes[index] = total\n",
        "tests/agent/test_uploads.py::test_a_report_waits_while_bytes_move_and_drops_the_waiting_one_when_they_stand_still",
    ),
    Mutant(
        "the first cause of an agent's last word is the latest",
        FOLDER + "**/farewell.py",
        "    return min(\n        broken,",
        "    return max(\n        broken,",
        "tests/agent/test_farewell.py::test_the_first_cause_is_told_else_why_the_agent_ends",
    ),
    Mutant(
        "a complete run leaves no word of it",
        FOLDER + "**/farewell.py",
        '    if report.get("completed"):\n',
        "    if False:\n",
        "tests/agent/test_farewell.py::test_a_complete_run_says_so_and_nothing_else",
    ),
    Mutant(
        "uploads that stand still are waited for for ever",
        FOLDER + "**/finishing.py",
        "            if not working.done() and moves() == before:",
        "            if False:",
        "tests/agent/test_finishing.py::test_uploads_are_given_up_once_nothing_has_moved_for_a_while",
    ),
)

"""Mistakes in the rules of groups without agents."""

from __future__ import annotations

from support.mutation.mutant import Mutant

FOLDER = "operator/trainjob_operator/core/"
TEST = "tests/core/test_size.py::"

MUTANTS = (
    Mutant(
        "a plain member that was there is made again",
        FOLDER + "**/pod_ends.py",
        "    return slot in turn.observed.went or (",
        "    return (",
        "tests/core/test_size.py::test_plain_mode_a_member_that_was_there_before_all_had_a_node_is_not_made_again",
    ),
    Mutant(
        "a new leader makes a plain member again that may have been there",
        FOLDER + "**/pod_ends.py",
        " or (turn.observed.refusals is None and runs)",
        "",
        "tests/core/test_size.py::test_plain_mode_a_member_that_was_there_before_all_had_a_node_is_not_made_again",
    ),
    Mutant(
        "a create that was not answered is not waited for",
        FOLDER + "size/start.py",
        "    lands = [turn.observed.creates_land_until]",
        "    lands: list[datetime | None] = []",
        TEST + "test_plain_mode_the_next_group_waits_for_a_create_that_was_not_answered",
    ),
    Mutant(
        "creates of the leader before are not waited for",
        FOLDER + "size/start.py",
        "        lands.append(after(made, CREATE_LANDS_S))",
        "        pass",
        TEST + "test_plain_mode_a_new_leader_waits_for_creates_of_the_one_before_that_it_has_not_heard_of",
    ),
    Mutant(
        "a turn that is given up forgets its creates",
        "operator/trainjob_operator/loop/creates.py",
        "            self._note_lost(decision, clock())",
        "            pass",
        "tests/shell/test_creates.py::test_a_turn_that_is_given_up_leaves_its_creates_unanswered",
    ),
)

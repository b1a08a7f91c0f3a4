"""Mistakes in the rules of spare workers."""

from __future__ import annotations

from support.mutation.mutant import Mutant

FOLDER = "operator/trainjob_operator/core/"
TEST = "tests/core/test_spares.py::"

MUTANTS = (
    Mutant(
        "a spare is counted as a member",
        FOLDER + "pods/naming.py",
        "    return Slots(slot for slot in listed if slot not in spares) if spares else listed",
        "    return listed",
        TEST + "test_what_is_shown_of_them",
    ),
    Mutant(
        "a spare is taken before it has synced",
        FOLDER + "size/spares.py",
        "    if pod is None or view is None or not is_synced(turn, slot):\n        return False\n",
        "    if pod is None or view is None:\n        return pod is not None\n",
        TEST + "test_a_spare_that_nobody_has_heard_is_not_taken",
    ),
    Mutant(
        "a spare is taken before it is warm",
        FOLDER + "size/spares.py",
        "view.quiet and is_warm(turn, slot) and",
        "view.quiet and",
        TEST + "test_one_that_is_not_ready_is_not_taken",
    ),
    Mutant(
        "a silent spare is taken",
        FOLDER + "size/spares.py",
        " and not is_announced(pod) and not says_nothing(turn, pod)",
        " and not is_announced(pod)",
        TEST + "test_a_silent_spare_is_not_taken",
    ),
    Mutant(
        "a spare is taken in place of a member that lives",
        FOLDER + "size/spares.py",
        "        late = [slot for slot in late if not (slot in turn.former and slot in turn.kids.live)]\n",
        "",
        TEST + "test_a_member_that_lives_is_waited_for_though_a_spare_is_ready",
    ),
    Mutant(
        "spares are asked for before all workers train",
        FOLDER + "size/slots.py",
        "    if turn.running is None or len(turn.members()) < turn.spec.workers or turn.blocked is not None or turn.is_broken:",
        "    if turn.blocked is not None or turn.is_broken:",
        TEST + "test_they_are_asked_for_once_all_workers_train",
    ),
    Mutant(
        "a spare that dies makes workers wait",
        FOLDER + "size/slots.py",
        "set(kids.ended) - set(turn.former) - set(marked):",
        "set(kids.ended) - set(turn.former):",
        TEST + "test_a_spare_that_dies_is_replaced_and_costs_nothing",
    ),
    Mutant(
        "a spare that dies between attempts is a failed start",
        FOLDER + "groups/agents.py",
        "        apart = {*turn.former, *spare_slots(turn.status)}",
        "        apart = {*turn.former}",
        TEST + "test_a_spare_that_dies_between_attempts_is_no_failed_start",
    ),
    Mutant(
        "a spare waits for a node for ever",
        FOLDER + "size/spares.py",
        "    turn.wake(until)\n    return turn.now >= until",
        "    return False",
        TEST + "test_one_that_finds_no_node_is_given_back_and_tried_again",
    ),
    Mutant(
        "spares are a gang of their own",
        FOLDER + "size/gang.py",
        "if turn.running is not None or not has_node(turn, slot)]",
        "if False]",
        TEST + "test_two_spares_of_which_one_finds_a_node_are_no_start_that_is_given_back",
    ),
    Mutant(
        "a spare that has no node competes with a worker",
        FOLDER + "size/spares.py",
        "if slot not in in_vain and (has_node(turn, slot) or not lacking)]",
        "if slot not in in_vain]",
        TEST + "test_while_a_worker_has_no_node_no_spare_asks_for_one",
    ),
    Mutant(
        "an edit of the number of spares is one of the pods",
        FOLDER + "make.py",
        "    if spec.runtime.spare_workers:",
        "    if not spec.workers:",
        TEST + "test_the_field_is_in_no_pods_make",
    ),
    Mutant(
        "spares stay behind when the job is over",
        FOLDER + "lifecycle.py",
        'slots=format_slots(worker_slots(turn.status)), spares="")',
        "slots=turn.status.slots)",
        TEST + "test_a_job_that_is_over_has_none",
    ),
    Mutant(
        "an elastic job that trains with fewer keeps spares",
        FOLDER + "size/spares.py",
        "    if turn.running is None or not spares or free <= 0:\n        return workers, spares",
        "    return workers, spares",
        TEST + "test_more_workers_are_wished_and_the_spare_is_the_first_of_them",
    ),
    Mutant(
        "that a spare is warm wakes nobody",
        "operator/trainjob_operator/agents/roster.py",
        "    if changed & _BESIDE_FIELDS and not is_beside():\n",
        "    if True:\n",
        "tests/shell/test_coordinator.py::test_that_who_waits_beside_an_attempt_is_warm_matters_and_of_others_it_does_not",
    ),
)

"""Mistakes in what jobs say of nodes, and who keeps away from them."""

from __future__ import annotations

from support.mutation.mutant import Mutant

API = "operator/trainjob_api/bad_nodes.py"
LOOP = "operator/trainjob_operator/loop/suspects.py"
SIM = "tests/sim/test_bad_nodes.py::"

MUTANTS = (
    Mutant(
        "a later failure elsewhere takes back what a job said of a node",
        API,
        "    found = [Mark(suspect.node, _aware(suspect.time), name, suspect.reason) for suspect in status.suspects]\n",
        "    found: list[Mark] = []\n",
        SIM + "test_what_a_job_said_of_a_node_outlives_a_later_failure_and_an_operator_restart",
    ),
    Mutant(
        "what was said of a node counts against the one that was made in its place",
        LOOP,
        "told.at > now - FOR and (node not in self._made_at or told.at > self._made_at[node])",
        "told.at > now - FOR",
        SIM + "test_a_node_that_is_made_anew_under_the_same_name_starts_afresh",
    ),
    Mutant(
        "a clock that was a day ahead has a node kept away from for a day",
        LOOP,
        "_Told(mark, min(mark.at, now))",
        "_Told(mark, mark.at)",
        SIM + "test_an_operator_whose_clock_was_a_day_ahead_has_a_node_kept_away_from_for_an_hour",
    ),
    Mutant(
        "what a wrong clock dated counts for another hour each time it is heard",
        LOOP,
        "(known.mark != mark and known.at < mark.at)",
        "known.at < mark.at",
        "tests/shell/test_suspects.py::test_what_a_clock_that_was_ahead_dated_counts_for_an_hour_from_when_it_was_heard",
    ),
    Mutant(
        "namespaces that no job is left in are remembered",
        LOOP,
        "                del self._told[namespace]\n",
        "                continue\n",
        "tests/shell/test_suspects.py::test_namespaces_without_jobs_are_forgotten",
    ),
    Mutant(
        "a rank that is slow for longer than an hour says nothing of its node",
        API,
        "        at = now if lasts else _aware(slow.since)\n",
        "        at = _aware(slow.since)\n",
        "tests/api/test_bad_nodes.py::test_a_rank_that_is_still_slow_says_it_of_its_node_now",
    ),
    Mutant(
        "the pod of the job that makes a node bad is made there again",
        "operator/trainjob_operator/core/size/suspected.py",
        "(*turn.observed.marks, *new)",
        "turn.observed.marks",
        "tests/core/test_size.py::test_the_pod_of_the_job_that_makes_a_node_bad_keeps_away_from_it_too",
    ),
    Mutant(
        "a spare on a node on which other jobs suffered is taken first",
        "operator/trainjob_operator/core/size/spares.py",
        "{*turn.status.failures.avoid_nodes, *(node.name for node in suspected(turn))}",
        "turn.status.failures.avoid_nodes",
        "tests/core/test_spares.py::test_a_spare_on_a_node_where_other_jobs_suffered_is_taken_last",
    ),
    Mutant(
        "nodes that broke in the future stay so",
        "operator/trainjob_operator/core/clocks.py",
        '        "suspects": [each.model_copy(update={"time": past(each.time)}) for each in status.suspects],\n',
        "",
        "tests/core/test_clocks.py::test_nodes_that_broke_in_the_future_broke_now",
    ),
)

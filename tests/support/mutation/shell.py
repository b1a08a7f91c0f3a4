"""Mistakes in the operator's loop, its coordinator, and the in-process cluster. One entry each: name, file, what stands there, what is put in its place, the test that sees it."""

from __future__ import annotations

from support.mutation.mutant import Mutant

FOLDER = "operator/trainjob_operator/"

MUTANTS = (
    Mutant(
        "an older report replaces a newer one",
        FOLDER + "**/roster.py",
        "        if before is not None and report.order < before.order:",
        "        if False:",
        "tests/shell/test_coordinator.py::test_an_older_report_is_refused_and_changes_nothing",
    ),
    Mutant(
        "a pod that no list shows is told to leave",
        FOLDER + "**/roster.py",
        "known.slots.get(asker.pod_uid) != asker.slot:",
        "False:",
        "tests/shell/test_coordinator.py::test_a_pod_that_no_list_has_shown_yet_is_told_nothing",
    ),
    Mutant(
        "nobody hears that an agent has fallen silent",
        FOLDER + "**/silence_watch.py",
        "            self._look(key)\n",
        "            pass\n",
        "tests/shell/test_coordinator.py::test_a_turn_is_asked_for_when_an_agent_has_fallen_silent_and_for_no_poll_that_comes",
    ),
    Mutant(
        "one secret for all attempts",
        FOLDER + "**/roster.py",
        'f"{job_uid}\\n{attempt}".encode()',
        'f"{job_uid}".encode()',
        "tests/shell/test_coordinator.py::test_the_secret_comes_with_run_alone_and_is_of_job_and_attempt",
    ),
    Mutant(
        "a termination message replaces what was heard",
        FOLDER + "**/last_words.py",
        '        if ranks.get(rank["rank"], {}).get("state") != contract.RANK_ENDED:\n',
        "        if True:\n",
        "tests/shell/test_last_words.py::test_what_was_heard_of_a_ranks_end_stays_it_has_a_traceback",
    ),
    Mutant(
        "the termination message of another pod counts",
        FOLDER + "**/last_words.py",
        "            or (view is not None and view.pod_uid != pod.uid)\n",
        "",
        "tests/shell/test_last_words.py::test_the_message_of_a_pod_says_nothing_of_another_one_in_its_slot",
    ),
    Mutant(
        "actions before the status write",
        FOLDER + "**/apply.py",
        "    job = await write_status(cluster, observed.job, decision)\n    on_written(job)\n    writer = _Writer(cluster, job, installation)\n    removals, makings, ends = _by_kind(decision.actions)\n",
        "    writer = _Writer(cluster, observed.job, installation)\n    removals, makings, ends = _by_kind(decision.actions)\n    await _together(writer, makings)\n    job = await write_status(cluster, observed.job, decision)\n    on_written(job)\n",
        "tests/shell/test_apply.py::test_everything_in_its_order",
    ),
    Mutant(
        "the status write is not fenced",
        FOLDER + "memory/cluster.py",
        "            if current != resource_version:\n",
        "            if False:\n",
        "tests/shell/test_apply.py::test_a_conflict_of_the_status_stops_the_turn",
    ),
    Mutant(
        "events though the write failed",
        FOLDER + "**/apply.py",
        "    job = await write_status(cluster, observed.job, decision)\n    on_written",
        "    await _in_turn([_emission(cluster, observed.job, event) for event in decision.events])\n    job = await write_status(cluster, observed.job, decision)\n    on_written",
        "tests/shell/test_apply.py::test_everything_in_its_order",
    ),
    Mutant(
        "a delete without the pod's UID",
        FOLDER + "memory/cluster.py",
        "self._store.delete(POD, namespace, name, uid, grace_s)",
        "self._store.delete(POD, namespace, name, None, grace_s)",
        "tests/shell/test_cluster_contract.py::test_a_pod_is_deleted_only_by_its_uid",
    ),
    Mutant(
        "somebody else's pod passes for ours",
        FOLDER + "**/apply.py",
        "            if not owned_by(existing, self._job.metadata.uid):",
        "            if False:",
        "tests/shell/test_apply.py::test_somebody_elses_pod_is_named_and_the_others_are_still_created",
    ),
    Mutant(
        "a failing create keeps pods from being deleted",
        FOLDER + "**/apply.py",
        "    removed, made = await asyncio.gather(_together(writer, [removals]), _together(writer, makings))",
        "    made = await _together(writer, makings)\n    removed = [] if made else await _together(writer, [removals])",
        "tests/shell/test_apply.py::test_everything_in_its_order",
    ),
    Mutant(
        "a job that changed while it was looked at",
        FOLDER + "**/observe.py",
        '    if again["metadata"]["resourceVersion"] != job.metadata.resource_version:',
        "    if False:",
        "tests/shell/test_observe.py::test_a_job_that_changes_while_its_pods_are_listed_is_looked_at_again",
    ),
    Mutant(
        "refused creates are tried in each turn",
        FOLDER + "**/creates.py",
        "        if now >= self._not_before or news:",
        "        if True:",
        "tests/shell/test_creates.py::test_over_quota_a_job_at_rest_asks_rarely",
    ),
    Mutant(
        "a failed turn is tried again without a rest",
        FOLDER + "**/workqueue.py",
        "        self._schedule.rest(key, until)\n        self._schedule.add(key, until)",
        "        self._schedule.add(key, self._clock.monotonic())",
        "tests/shell/test_workqueue.py::test_back_off_doubles_with_jitter_and_starts_over_after_success",
    ),
    Mutant(
        "two turns of one job at once",
        FOLDER + "**/workqueue.py",
        "        self._taken.add(key)\n        return key",
        "        return key",
        "tests/shell/test_workqueue.py::test_a_taken_key_waits_until_it_is_given_back",
    ),
    Mutant(
        "the rules' clock steps",
        FOLDER + "steady_time.py",
        "        most_s = self._slew * passed_s",
        "        most_s = 1e9",
        "tests/sim/test_clock_steps.py::test_the_same_history_with_steps_and_without",
    ),
    Mutant(
        "a node that is cordoned says nothing of a pod that is gone",
        FOLDER + "**/observe.py",
        "        if taken is not None or name is None:\n",
        "        if True:\n",
        "tests/shell/test_observe.py::test_a_member_that_was_evicted_while_nobody_looked_was_taken_away",
    ),
    Mutant(
        "one turn creates all pods of a job, however many",
        FOLDER + "**/creates.py",
        "    if len(pods) <= MOST_A_TURN:\n",
        "    if len(pods) <= 10**9:\n",
        "tests/shell/test_reconciler.py::test_a_job_of_many_workers_hears_of_an_edit_while_its_pods_are_created",
    ),
    Mutant(
        "a remembered verdict outlives its token",
        FOLDER + "**/tokens.py",
        "known.ends + LEEWAY_S > now:",
        "known.ends > 0:",
        "tests/trust/test_tokens.py::test_a_token_is_believed_for_its_time_and_not_beyond_its_end",
    ),
)

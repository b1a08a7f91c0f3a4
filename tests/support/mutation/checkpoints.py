"""Mistakes in what stores, removes and chooses checkpoints. One entry each: name, file, what stands there, what is put in its place, the test that sees it."""

from __future__ import annotations

from support.mutation.mutant import Mutant

FOLDER = "worker-image/trainjob/checkpoint/"

MUTANTS = (
    Mutant(
        "the manifest before the shares",
        FOLDER + "**/shares.py",
        "    if missing:\n        return Commit(None, missing)\n",
        "",
        "tests/checkpoint/test_commit.py::test_without_its_manifest_a_checkpoint_does_not_exist",
    ),
    Mutant(
        "the record of a share before its files",
        FOLDER + "**/shares.py",
        "        record = _transfer(store, request, progress)\n        if store.create(",
        "        store.create(layout.share_key(request.id, request.rank), ShareRecord((), ()).dumps(request.id, request.rank))\n        record = _transfer(store, request, progress)\n        if store.create(",
        "tests/checkpoint/test_commit.py::test_without_its_manifest_a_checkpoint_does_not_exist",
    ),
    Mutant(
        "files that are gone are committed",
        FOLDER + "**/shares.py",
        "    _check_sizes(store, prefix, manifest)\n",
        "",
        "tests/checkpoint/test_commit.py::test_a_commit_whose_files_are_gone_is_refused",
    ),
    Mutant(
        "a staged file that changed is stored",
        FOLDER + "**/shares.py",
        "    if found.size != size or found != request.stamps.get(path, found):",
        "    if False:",
        "tests/checkpoint/test_commit.py::test_a_staged_file_that_changed_after_its_release_is_never_committed",
    ),
    Mutant(
        "what is being removed is committed",
        FOLDER + "**/shares.py",
        "    if store.size(layout.retired_key(note.id)) is not None:\n        return Commit(None)\n",
        "",
        "tests/checkpoint/test_commit.py::test_a_checkpoint_whose_removal_began_is_neither_read_nor_stored_nor_committed",
    ),
    Mutant(
        "a share of other files is taken",
        FOLDER + "**/shares.py",
        "    if record is None or sorted(",
        "    if record is None or False and sorted(",
        "tests/checkpoint/test_commit.py::test_a_share_of_other_files_is_refused",
    ),
    Mutant(
        "files go before the mark of the removal",
        FOLDER + "**/retire.py",
        '    if keys:\n        store.create(mark, b"{}\\n")\n',
        "",
        "tests/checkpoint/test_crash.py::test_a_retention_that_is_killed_anywhere_keeps_what_it_must_and_can_be_finished",
    ),
    Mutant(
        "the latest is removed",
        FOLDER + "**/retention.py",
        " | {latest}\n",
        "\n",
        "tests/checkpoint/test_retention.py::test_what_is_removed",
    ),
    Mutant(
        "what is protected is removed",
        FOLDER + "**/retention.py",
        " if c.id not in kept and c.id not in protect)",
        " if c.id not in kept)",
        "tests/checkpoint/test_retention.py::test_what_is_removed",
    ),
    Mutant(
        "the best is the worst",
        FOLDER + "**/retention.py",
        'value if policy.score_order == "max" else -value',
        '-value if policy.score_order == "max" else value',
        "tests/checkpoint/test_retention.py::test_what_is_removed",
    ),
    Mutant(
        "one more than keep stays",
        FOLDER + "**/retention.py",
        "ranked[: policy.keep]",
        "ranked[: policy.keep + 1]",
        "tests/checkpoint/test_retention.py::test_what_is_removed",
    ),
    Mutant(
        "an overtaken run removes checkpoints",
        FOLDER + "**/retire.py",
        "                if runs.overtaken(self._store, self._run, self._attempt):\n                    break\n",
        "",
        "tests/checkpoint/test_retention.py::test_other_runs_are_not_touched_and_nothing_once_a_later_run_exists",
    ),
    Mutant(
        "an older checkpoint is chosen",
        FOLDER + "**/choose.py",
        "    return [united[id_] for id_ in sorted(united, reverse=True)]",
        "    return [united[id_] for id_ in sorted(united)]",
        "tests/checkpoint/test_settle.py::test_the_choice_is_complete_and_nothing_complete_is_newer",
    ),
    Mutant(
        "a checkpoint that lacks files is chosen",
        FOLDER + "**/choose.py",
        "        if not lacking or set(lacking) <= stored.get(candidate.note.id, frozenset()):",
        "        if True:",
        "tests/checkpoint/test_settle.py::test_staged_candidates_count_if_every_file_is_held_or_stored",
    ),
    Mutant(
        "another run's checkpoint is chosen",
        FOLDER + "**/settle.py",
        "    own = [c for c in unite(candidates) if c.note.id.run == claimed.run]",
        "    own = unite(candidates)",
        "tests/checkpoint/test_settle.py::test_candidates_of_other_runs_do_not_count",
    ),
    Mutant(
        "a completed run goes on",
        FOLDER + "**/settle.py",
        "    completed = runs.ended(store, claimed.run)\n",
        "    completed = False\n",
        "tests/checkpoint/test_settle.py::test_auto_never_goes_on_from_a_run_that_completed",
    ),
    Mutant(
        "damage is not looked for",
        FOLDER + "**/shares.py",
        "            if found == (entry.size, entry.checksum, entry.algorithm):",
        "            if found is not None:",
        "tests/checkpoint/test_settle.py::test_staged_candidates_count_if_every_file_is_held_or_stored",
    ),
    Mutant(
        "boto3 takes half a head for a whole one",
        FOLDER + "**/s3/requests.py",
        "        replies.only_whole(client)\n",
        "",
        "tests/checkpoint/test_s3_strange_replies.py::test_a_head_that_broke_off_changes_no_answer",
    ),
    Mutant(
        "a list that says nothing is an empty one",
        FOLDER + "**/s3/store.py",
        "    replies.refuse_nothing(page)\n",
        "",
        "tests/checkpoint/test_s3_strange_replies.py::test_a_list_without_a_word_is_no_empty_one_even_where_boto3_takes_such_heads",
    ),
    Mutant(
        "a proxy that has no way to the store says what is stored",
        FOLDER + "**/s3/errors.py",
        "    if _nobody(given):\n        return RETRY\n",
        "    if _nobody(given):\n        return ABSENT\n",
        "tests/checkpoint/test_s3_strange_replies.py::test_a_proxy_that_has_no_way_to_the_store_is_asked_again",
    ),
)

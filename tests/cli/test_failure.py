"""A failure in words."""

from __future__ import annotations

import pkgutil
import sys
from dataclasses import replace

import pytest

from support.jobs import attempt, causes, checkpoint, condition, failure, job
from trainjob.screen.failure import ADVICE, Retry, advice, explain, headline, next_steps
from trainjob.screen.own_words import place
from trainjob_api import contract
from trainjob_api.v1alpha1 import Failure

RETRY = Retry(command="tj run train.py --name digits", script="train.py", storage="/ckpt/default/digits")

NOT_A_FAILURE = {
    contract.REASON_COMPLETED,
    contract.REASON_SUSPENDED,
    contract.REASON_CANCELLED,
    contract.REASON_SCALED,
    contract.REASON_RESIZED,
    contract.REASON_GAVE_WAY,
    contract.REASON_RESTART_REQUESTED,
    contract.REASON_STRAGGLER,
}


def of(**more: object) -> Failure:
    return Failure.model_validate(failure(**more))


def test_what_is_missing_is_installed_where_the_ranks_run() -> None:
    missing = of(message="rank 0 raised ModuleNotFoundError: No module named 'einops.layers'")
    here = advice(contract.REASON_USER_ERROR, missing, RETRY)
    assert f"{sys.executable} -m pip install einops" in here
    there = advice(contract.REASON_USER_ERROR, missing, replace(RETRY, job="digits"))
    assert there == "Install einops in the workers' image, or correct the import (/w/train.py:61)"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("einopss", "did you mean einops? It is not installed either: `{} -m pip install einops`"),
        ("CV2", "did you mean cv2? It is not installed either: `{} -m pip install opencv-python`"),
    ],
)
def test_a_slip_in_a_known_name_that_is_not_installed_offers_that_one(
    name: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pkgutil, "iter_modules", lambda: iter(()))
    missing = of(message=f"rank 0 raised ModuleNotFoundError: No module named '{name}'")
    told = advice(contract.REASON_USER_ERROR, missing, RETRY)
    assert told == f"Correct the import (/w/train.py:61): {said.format(sys.executable)}"
    right = of(message="rank 0 raised ModuleNotFoundError: No module named 'sklearn.svm'")
    assert advice(contract.REASON_USER_ERROR, right, RETRY).endswith("-m pip install scikit-learn`")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("numyp", "did you mean numpy? Nothing called numyp is installed"),
        ("nunpy", "did you mean numpy? Nothing called nunpy is installed"),
        ("Numpy", "did you mean numpy? Nothing called Numpy is installed"),
        ("jsonn", "did you mean json? Nothing called jsonn is installed"),
        ("torch.optimm", "torch is installed, but has no module torch.optimm in this version"),
    ],
)
def test_a_name_with_a_slip_in_it_is_never_offered_for_installing(name: str, said: str) -> None:
    """A package of that name may be anybody's."""
    missing = of(message=f"rank 0 raised ModuleNotFoundError: No module named '{name}'")
    here = advice(contract.REASON_USER_ERROR, missing, RETRY)
    assert here == f"Correct the import (/w/train.py:61): {said}"
    there = advice(contract.REASON_USER_ERROR, missing, replace(RETRY, job="digits"))
    assert "pip" not in there


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "rank 1 on digits-1 raised ValueError: bad batch"),
        ({"message": "", "exitCode": None, "signal": 9}, "rank 1 on digits-1 was killed by SIGKILL"),
        ({"message": "", "exitCode": 3}, "rank 1 on digits-1 ended with exit code 3"),
        ({"message": "", "exitCode": None, "rank": None, "pod": None, "reason": "PodLost"}, "a worker: PodLost"),
        ({"message": "first\nsecond"}, "first"),
    ],
)
def test_the_headline_says_what_is_known(given: dict[str, object], text: str) -> None:
    assert headline(of(**given)) == text


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            "lost its DataLoader: process 7 of it was killed by SIGKILL (by somebody ...)",
            "If `dmesg | tail` shows that memory ran out, use less",
        ),
        ("lost its DataLoader: process 7 of it was killed by SIGBUS (shared ...)", "Make /dev/shm larger"),
        ("lost its DataLoader: process 7 of it was killed by SIGTERM", "Something told it to end"),
        ("lost its DataLoader: process 7 of it was killed by SIGSEGV", "It crashed in native code that loads data"),
    ],
)
def test_a_killed_data_loader_has_a_way_out_by_its_signal(message: str, said: str) -> None:
    lost = of(message=f"rank 0 on digits-0 {message}", reason=contract.REASON_SIGNAL)
    assert advice(contract.REASON_SIGNAL, lost, RETRY).startswith(said)


def test_refused_arguments_are_corrected_where_they_stand() -> None:
    refused = of(message="rank 0 ended with exit code 2: t.py: error: no such", reason=contract.REASON_EXIT, exitCode=2)
    assert advice(contract.REASON_EXIT, refused, RETRY) == "Correct the script's arguments, which follow --"
    again = replace(RETRY, command="tj run t.py --name digits -- --lrr 3")
    assert next_steps(contract.REASON_EXIT, refused, again) == [
        "next: Correct the script's arguments, which follow --.",
        "      then `tj run t.py --name digits -- ...` starts again.",
    ], "not the wrong ones once more"
    without = next_steps(contract.REASON_EXIT, refused, replace(RETRY, command="tj run t.py --name digits"))
    assert without[1] == "      then `tj run t.py --name digits -- ...` starts again.", "it had none, and needs some"
    manifest = next_steps(contract.REASON_EXIT, refused, replace(RETRY, command="tj run -f t.yaml --local"))
    assert "-- ..." not in manifest[1], "which takes none"


def test_an_index_error_elsewhere_is_not_about_arguments() -> None:
    told = '  File "/w/argv/t.py", line 3, in f\n    return batch[9]\nIndexError: list index out of range'
    broke = of(message="rank 0 raised IndexError: list index out of range", traceback=told)
    assert advice(contract.REASON_USER_ERROR, broke, RETRY) == "Fix /w/argv/t.py:3"


def test_a_checkpoint_of_another_model_is_told_as_one() -> None:
    misfit = "\tsize mismatch for 0.weight: copying a param with shape torch.Size([8]) from checkpoint"
    said = f"rank 0 on d-0 raised RuntimeError: Error(s) in loading state_dict for Net:\n{misfit}"
    broke = failure(message=said, traceback=f'  File "/w/t.py", line 9, in f\nRuntimeError: Error(s)\n{misfit}')
    verdict = f"{said}; the same error twice in a row, before the first report: a restart cannot help"
    failed = {"conditions": [condition("Failed", "True", contract.REASON_USER_ERROR, verdict)], "lastFailure": broke}
    lines = explain(job({**failed, "attempt": {**attempt(), "resumedFrom": "1-1-2"}}), RETRY)
    assert lines[-3:] == [
        "  UserCodeError: the same error twice in a row, before the first report: a restart cannot help",
        "next: The checkpoint is of another model than the script has now (/w/t.py:9): start over with --fresh or under "
        "another --name, or make the model as it was.",
        "      then `tj run train.py --name digits --fresh` starts from the beginning.",
    ]


def test_where_no_line_stands_above_the_command_that_shows_them_is_named() -> None:
    for reason in ADVICE:
        lost = of(message="rank 0 on d-0 broke", reason=reason).model_copy(update={"traceback": None})
        told = advice(reason, lost, replace(RETRY, logs="tj logs digits"))
        assert "lines above" not in told and "Look above" not in told, reason
    lost = of(message="d-0 failed", reason=contract.REASON_POD_FAILED)
    assert advice(contract.REASON_POD_FAILED, lost, RETRY) == "Look at the worker's last lines above"
    told = advice(contract.REASON_POD_FAILED, lost, replace(RETRY, logs="tj logs digits --run 2"))
    assert told == "Look at the worker's last lines (`tj logs digits --run 2`)"


def test_a_script_that_ends_itself_is_looked_at_there() -> None:
    told = 'Traceback (most recent call last):\n  File "/w/train.py", line 7, in main\nSystemExit: 3'
    left = of(message="rank 0 on d-0 ended with exit code 3", reason=contract.REASON_EXIT, exitCode=3, traceback=told)
    said = advice(contract.REASON_EXIT, left, RETRY)
    assert said == "Look at /w/train.py:7: the script ends itself there, by sys.exit() or the like"


def test_the_place_is_the_innermost_frame() -> None:
    assert place(of()) == "/w/train.py:61"
    assert place(of(traceback=None)) is None


def test_the_place_is_in_the_users_code_and_not_in_a_library() -> None:
    deep = (
        str(failure()["traceback"])
        + '\n  File "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 9, in f\n  File '
        '"<string>", line 1'
    )
    assert place(of(traceback=deep)) == "/w/train.py:61"
    assert (
        place(of(traceback='File "/usr/lib/python3.11/json/decoder.py", line 3'))
        == "/usr/lib/python3.11/json/decoder.py:3"
    )


def test_a_failed_job_is_explained_with_cause_traceback_and_next_command() -> None:
    failed = job(
        {
            "conditions": [condition("Failed", "True", "RestartLimitExceeded", "4 failures, 3 allowed")],
            "lastFailure": failure(),
            "checkpoint": checkpoint(),
        }
    )
    lines = explain(failed, RETRY)
    assert (
        lines[:4]
        == [
            "digits failed: rank 1 on digits-1 raised ValueError: bad batch",
            *[f"    {line}" for line in str(failure()["traceback"]).splitlines()],
        ][:4]
    )
    assert lines[-5:] == [
        "  [UserCodeError in attempt 1; 1 other rank ended because of it]",
        "  saved: checkpoint 1-1-4 at step 180",
        "  RestartLimitExceeded: 4 failures, 3 allowed",
        "next: Fix /w/train.py:61.",
        "      then `tj run train.py --name digits` resumes from that checkpoint.",
    ]


def test_the_cause_is_not_told_twice() -> None:
    told = "rank 1 on digits-1 raised ValueError: bad batch; a rule of failurePolicy says that this fails the job"
    lines = explain(
        job({"conditions": [condition("Failed", "True", "FailRule", told)], "lastFailure": failure()}), RETRY
    )
    assert sum("ValueError: bad batch" in line for line in lines) == 1
    assert "  FailRule: a rule of failurePolicy says that this fails the job" in lines


def test_a_traceback_that_was_shown_is_not_shown_again() -> None:
    failed = job({"conditions": [condition("Failed", "True", "UserCodeError")], "lastFailure": failure()})
    lines = explain(failed, RETRY, shown=1)
    assert lines[:2] == [
        "digits failed: rank 1 on digits-1 raised ValueError: bad batch",
        "  [UserCodeError in attempt 1, its traceback is above; 1 other rank ended because of it]",
    ]


def test_a_traceback_that_an_attempt_before_printed_is_told_with_its_number() -> None:
    failed = job({"conditions": [condition("Failed", "True", "UserCodeError")], "lastFailure": failure(attempt=4)})
    said = "  [UserCodeError in attempt 4, its traceback is above, in attempt 1; 1 other rank ended because of it]"
    assert explain(failed, RETRY, shown=1)[1] == said


def test_on_this_machine_there_are_no_pods() -> None:
    lost = failure(reason=contract.REASON_POD_FAILED, message="digits-1 was killed by SIGKILL", traceback=None)
    failed = job({"conditions": [condition("Failed", "True", contract.REASON_LIMIT)], "lastFailure": lost})
    assert explain(failed, RETRY)[1].startswith("  [WorkerFailed in attempt 1")
    assert explain(failed, replace(RETRY, job="digits"))[1].startswith("  [PodFailed in attempt 1")


def test_commands_have_the_name_of_the_job() -> None:
    hung = of(reason=contract.REASON_HANG, message="rank 1 waits", traceback=None)
    assert "`tj hang digits`" in advice(contract.REASON_HANG, hung, replace(RETRY, name="digits"))
    assert "`tj hang digits -n team`" in advice(contract.REASON_HANG, hung, replace(RETRY, job="digits -n team"))


def test_an_error_of_several_lines_keeps_those_that_the_headline_lacks() -> None:
    told = failure(
        message="rank 1 on digits-1 raised ValueError: bad", traceback="Traceback:\nValueError: bad\nbatch 3"
    )
    failed = job({"conditions": [condition("Failed", "True", "UserCodeError")], "lastFailure": told})
    assert explain(failed, RETRY)[1:3] == ["    Traceback:", "    batch 3"]


def test_without_a_checkpoint_the_next_start_is_called_what_it_is() -> None:
    lines = explain(
        job({"conditions": [condition("Failed", "True", "UserCodeError")], "lastFailure": failure()}), RETRY
    )
    assert lines[-3:] == [
        "  saved: no checkpoint yet",
        "next: Fix /w/train.py:61.",
        "      then `tj run train.py --name digits` starts again.",
    ]


def test_a_failure_that_left_no_trace_still_names_a_next_step() -> None:
    assert explain(job(), RETRY)[-2].startswith("next: ")


def test_every_reason_that_can_fail_a_job_has_advice_that_fits_together() -> None:
    reasons = causes() - NOT_A_FAILURE
    assert set(ADVICE) == reasons
    for reason in reasons:
        for given in (of(), of(rank=None, traceback=None), None):
            assert "{" not in advice(reason, given, RETRY)


def test_a_checkpoint_that_only_the_storage_knows_yet_is_this_runs() -> None:
    ended = {
        "attempt": {
            "number": 1,
            "run": 3,
            "state": "Ended",
            "worldSize": 1,
            "members": "0",
            "cause": "Started",
            "startedAt": "2026-01-02T03:04:05Z",
            "workers": 1,
        },
        "conditions": [condition("Failed", "True", "RestartLimitExceeded", "1 failure")],
        "lastFailure": failure(),
    }
    assert "  saved: checkpoint 3-1-2" in explain(job(ended), RETRY, "3-1-2")
    assert "  saved: nothing new; checkpoint 2-1-2 is there from before" in explain(job(ended), RETRY, "2-1-2")
    told = job({**ended, "checkpoint": {"latest": {"id": "3-1-9", "bytes": 3}, "count": 1}})
    assert "  saved: checkpoint 3-1-10" in explain(told, RETRY, "3-1-10"), "workers store what they hold after it"
    assert "  saved: checkpoint 3-1-9" in explain(told, RETRY, "3-1-8")


def test_a_bucket_is_no_disk() -> None:
    bucket = Retry(command="tj run train.py", script="train.py", storage="s3://bucket/ckpt/default/digits")
    assert "df -h" in advice(contract.REASON_STORAGE, None, RETRY)
    for retry in (bucket, Retry(command="tj submit", script="train.py", storage=bucket.storage, job="digits")):
        assert "endpoint of s3://bucket/ckpt/default/digits" in advice(contract.REASON_STORAGE, None, retry)
        assert "disk" not in advice(contract.REASON_DAMAGED, None, retry)


def test_a_checkpoint_of_the_run_before_is_not_denied() -> None:
    """This run saved nothing, and the next one goes on from where this one began."""
    gone = {
        "failures": {"counted": 1},
        "conditions": [condition("Failed", "True", "RestartLimitExceeded", "1 failure")],
    }
    for lines in (
        explain(job({**gone, "attempt": {**attempt(), "resumedFrom": "1-1-2"}}), RETRY),
        explain(job({**gone, "attempt": attempt()}), RETRY, "1-1-2"),
    ):
        assert "  saved: nothing new; checkpoint 1-1-2 is there from before" in lines
        assert "resumes from that checkpoint" in lines[-1]


def test_attempts_that_ended_by_the_same_cause_are_told_together() -> None:
    lost = "rank 0 on digits-0 lost its DataLoader: process {} of it was killed by SIGKILL"

    def explained(*positions: int) -> str:
        history = [
            {"attempt": 2 + at, "cause": "Started", "startedAt": "2030-01-01T00:00:00Z", "worldSize": 2,
             "position": position, "message": lost.format(70 + at)}
            for at, position in enumerate(positions)
        ]  # fmt: skip
        other = {**history[0], "attempt": 1, "message": "rank 1 on digits-1 was killed by SIGKILL"}
        told = failure(attempt=len(positions) + 1, message=lost.format(99), reason=contract.REASON_SIGNAL)
        failed = condition("Failed", "True", contract.REASON_LIMIT)
        return "\n".join(
            explain(job({"conditions": [failed], "lastFailure": told, "history": [other, *history]}), RETRY)
        )

    assert "  attempts 2 to 4 ended by the same cause, each after report 12\n" in explained(12, 12, 12)
    assert "  attempts 2 to 4 ended by the same cause\n" in explained(12, 13, 12)
    assert "by the same cause" not in explained(12)


def test_attempts_on_a_worker_that_took_a_place_count_as_the_same_cause() -> None:
    """All four, though the last two ran on digits-2, and though the history keeps the begin of a long sentence."""
    said = "rank 1 on digits-{} raised RuntimeError: " + "closed by a peer " * 15
    history = [
        {"attempt": at, "cause": "Started", "startedAt": "2030-01-01T00:00:00Z", "worldSize": 2,
         "message": said.format(1 if at < 3 else 2)[: contract.ENDED_LIMIT]}
        for at in (1, 2, 3, 4)
    ]  # fmt: skip
    told = failure(attempt=4, message=said.format(2), reason=contract.REASON_COMMUNICATION)
    failed = condition("Failed", "True", contract.REASON_LIMIT)
    lines = explain(job({"conditions": [failed], "lastFailure": told, "history": history}), RETRY)
    assert "  attempts 1 to 4 ended by the same cause" in lines


def test_ranks_that_make_different_calls_are_told_so_and_not_that_a_library_does_not_fit() -> None:
    said = "rank 0 on digits-0 was killed by SIGABRT (gloo::EnforceNotMet: 12 vs 4. Is there a distributed collective "
    broke = of(message=f"{said}mismatch in your code?)", reason=contract.REASON_SIGNAL, signal=6, exitCode=None)
    told = advice(contract.REASON_SIGNAL, broke, RETRY)
    assert told.startswith("The ranks make different calls of torch.distributed: let all call the same collectives")
    assert "/w/train.py:61" in told and "docs/hangs.md" in told
    other = of(message="rank 0 on digits-0 was killed by SIGABRT", reason=contract.REASON_SIGNAL, signal=6)
    assert advice(contract.REASON_SIGNAL, other, RETRY).startswith("It crashed in native code")


def test_in_place_of_a_damaged_checkpoint_the_command_names_the_one_before() -> None:
    instead = contract.CHECKPOINT_BEFORE.format("/s/1-1-1")
    lost = of(message=f"checkpoint /s/1-1-2 {contract.ORIGIN_DAMAGED}. {instead}", reason=contract.REASON_STORAGE)
    again = replace(RETRY, command="tj run t.py --resume-from digits/1-1-2 --name next")
    assert next_steps(contract.REASON_STORAGE, lost, again) == [
        "next: Resume from the checkpoint before it, or from none.",
        "      then `tj run t.py --resume-from /s/1-1-1 --name next` starts again.",
    ]


def test_a_job_of_another_model_is_started_over_by_the_command_that_is_offered() -> None:
    lost = of(message="rank 0 raised RuntimeError: Error(s) in loading state_dict for Net: size mismatch for a.weight")
    again = replace(RETRY, command="tj run t.py --name cc --resume-from other -- --hidden 32")
    said, then = next_steps(contract.REASON_USER_ERROR, lost, again, resumes=True)
    assert said.startswith(
        "next: The checkpoint is of another model than the script has now (/w/train.py:61): start over"
    )
    assert then == "      then `tj run t.py --name cc --fresh -- --hidden 32` starts from the beginning."


def test_a_port_in_use_is_told_with_the_line_that_names_it() -> None:
    said = "rank 0 raised DistNetworkError: The server socket has failed to listen: EADDRINUSE, Address already in use"
    told = advice(contract.REASON_COMMUNICATION, of(message=said, reason=contract.REASON_COMMUNICATION), RETRY)
    assert told.startswith("A port is in use (/w/train.py:61): leave the address to the environment")


def test_a_report_that_rank_0_alone_calls_is_taken_out_of_its_condition() -> None:
    said = "rank 1 ended with exit code 0. report() is called by all ranks: does it stand under `if rank == 0:`?"
    left = of(message=said, reason=contract.REASON_RANK_ENDED_EARLY, exitCode=0)
    told = advice(contract.REASON_RANK_ENDED_EARLY, left, RETRY)
    assert told.startswith("If the call stands under `if rank == 0:`, take it out there: all ranks report")


def test_a_rank_that_left_is_asked_about_its_steps_and_an_exit_code_about_no_lines() -> None:
    left = of(message="rank 1 on digits-1 ended with exit code 0", reason=contract.REASON_RANK_ENDED_EARLY, exitCode=0)
    assert advice(contract.REASON_RANK_ENDED_EARLY, left, RETRY) == (
        "Rank 1 ended while others still train: does its loop have fewer steps, or does it call sys.exit()?"
    )
    code = of(message="rank 1 on digits-1 ended with exit code 3", reason=contract.REASON_EXIT, exitCode=3)
    told = advice(contract.REASON_EXIT, code.model_copy(update={"traceback": None}), RETRY)
    assert "rank 1" in told and "sys.exit()" in told and "above" not in told


def test_ranks_that_call_fit_are_not_to_be_started_as_ranks_again() -> None:
    refused = of(
        message=f"rank 0 raised LaunchError: train.py calls fit() in each of the 2 ranks of a job, and each {contract.JOBS_OF_RANKS}"
    )
    said = next_steps(contract.REASON_USER_ERROR, refused, RETRY)
    assert said == ["next: Start the script itself, as the sentence above says: fit() starts the ranks."]

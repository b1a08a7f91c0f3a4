"""A failure in words: which rank broke first, what it said, and what to type next; pure.

Called by the displays and by `run` when the job has failed. What the cause *is* was decided by the control loop and
stands in the status; here it is only put so that a person can act on it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainjob.checkpoint.records.identity import is_newer
from trainjob.screen import own_words, wording
from trainjob.screen.asked import Asker, in_words_of, reason_here
from trainjob_api import contract, same_error

if TYPE_CHECKING:
    from trainjob_api.v1alpha1 import Failure, HistoryEntry, TrainJob, TrainJobStatus

ADVICE = {
    contract.REASON_USER_ERROR: "Fix {where}",
    contract.REASON_EXIT: "Find what ends rank {rank} with that exit code: a sys.exit() of the script, or the program "
    "that it runs",
    contract.REASON_SIGNAL: "Find out who sent the signal (the kernel sends SIGKILL alone; `dmesg | tail` shows it)",
    contract.REASON_OOM: "Use less memory: smaller batches, fewer processes of the DataLoader (num_workers), fewer "
    "ranks (--workers); `dmesg | tail` shows what the kernel killed",
    contract.REASON_COMMUNICATION: "Look above for a rank that stopped or hung; TORCH_DISTRIBUTED_DEBUG=DETAIL in the "
    "environment names the operation",
    contract.REASON_RANK_ENDED_EARLY: "Rank {rank} ended while others still train: does its loop have fewer steps, or "
    "does it call sys.exit()?",
    contract.REASON_HANG: "Look at the rank that the sentence above names; `tj hang {name}` shows where each rank "
    "stood",
    contract.REASON_START: "Try `python {script}` by itself: the command cannot start, so it was not tried again",
    contract.REASON_DAMAGED: "Check the disk under the storage path; the damaged checkpoint was set aside",
    contract.REASON_STORAGE: "Check that the storage path can be written and has room (`df -h {storage}`), or choose "
    "another (spec.checkpoint.storage)",
    contract.REASON_STAGING_FULL: "Make room where checkpoints are staged: the sentence above says where",
    contract.REASON_NOT_SHARED: "Give a storage that all workers share: the sentence above names those that do not",
    contract.REASON_INTERNAL: "Look at the worker's last lines above, and mend what the agent lacked there",
    contract.REASON_POD_LOST: "Look at why the worker vanished (`dmesg | tail`, the node's events)",
    contract.REASON_WORKER_UNREACHABLE: "Look at the worker's node and the network to it: the worker was lost, not "
    "your code",
    contract.REASON_PEERS_UNREACHABLE: "Let the workers reach each other (a firewall?): the sentence above says who "
    "cannot reach whom",
    contract.REASON_POD_FAILED: "Look at the worker's last lines above",
    contract.REASON_NODE_REFUSED: "Look at that node (`kubectl describe node`): it had no room for the pod after "
    "all, or its device plugin failed; nothing of yours ran",
    contract.REASON_INIT_FAILED: "Look at the init container's log: the sentence above has the command",
    contract.REASON_PREEMPTED: "The worker's node was taken away; there is nothing to fix",
    contract.REASON_PREEMPTION_LIMIT: "Find a place where the job is disrupted less often, or allow more "
    "(spec.failurePolicy.maxPreemptions)",
    contract.REASON_INTERRUPTED: "A worker stopped its ranks on a word that no longer held; there is nothing to fix",
    contract.REASON_CONTAINER_RESTARTED: "The worker's container was started again; its log from before says why it "
    "ended",
    contract.REASON_START_FAILED: "Look at the worker's last lines above: it ended before the ranks could start",
    contract.REASON_DEADLINE: "Raise activeDeadlineSeconds if the job needs longer",
    contract.REASON_STARTUP_DEADLINE: "Raise startupDeadlineSeconds, or look at what the ranks do before their first "
    "report()",
    contract.REASON_INVALID_SPEC: "Correct the manifest (`tj validate -f FILE` checks it without running)",
    contract.REASON_RULE: "The exit code matched a rule with action Fail; fix what it stands for",
    contract.REASON_NO_PROGRESS: "Several attempts failed without a new report; fix the cause above first",
    contract.REASON_LIMIT: "Fix the cause above, or allow more restarts (spec.failurePolicy.maxFailures)",
}
"""What to do about each reason; a test holds it complete for every reason that can fail a job."""

ON_A_CLUSTER = {
    contract.REASON_EXIT: "Look at the last lines of rank {rank} for why it exited (`tj logs {job} --rank {rank}`)",
    contract.REASON_SIGNAL: "Find out who sent the signal (`tj events {job}`; exit code 137 without an OOM kill is "
    "often the node's)",
    contract.REASON_OOM: "Lower the batch size, or raise the container's memory limit",
    contract.REASON_COMMUNICATION: "Look for a rank that stopped or hung (`tj logs {job} --rank all`); "
    "TORCH_DISTRIBUTED_DEBUG=DETAIL in the environment names the operation",
    contract.REASON_HANG: "Look at the rank that the sentence above names; `tj hang {job}` shows where each rank stood",
    contract.REASON_START: "Try the container's command in its image: it cannot start, so it was not tried again",
    contract.REASON_STORAGE: "Check the volume that holds {storage}: whether it is mounted, has room, and lets the "
    "pods' user write",
    contract.REASON_STAGING_FULL: "Raise what the sentence above names, or save less at a time",
    contract.REASON_POD_LOST: "Look at why the pod vanished (`tj events {job}`)",
    contract.REASON_PEERS_UNREACHABLE: "Let the job's pods reach each other on any port (NetworkPolicies, service "
    "meshes): the sentence above says who cannot reach whom",
    contract.REASON_POD_FAILED: "Look at the pod's last lines (`tj logs {job} --rank all`) and `tj events {job}`",
    contract.REASON_START_FAILED: "Look at the pods' last lines (`tj logs {job} --rank all`): they ended before the "
    "ranks could start",
}
"""The same where there are pods instead of processes of this machine."""

IN_A_BUCKET = {
    contract.REASON_DAMAGED: "Look at what else writes or deletes in {storage}; the damaged checkpoint was set aside",
    contract.REASON_STORAGE: "Check bucket, credentials and endpoint of {storage}: the sentence above says which; "
    "`docs/checkpoints.md` lists the rights",
}
"""The same where the storage is no path."""


@dataclass(frozen=True)
class Retry:
    """How this run would be started again."""

    command: str
    script: str
    storage: str
    name: str = "NAME"
    """On this machine: how commands name the job."""
    job: str | None = None
    """On a cluster: the same, with the options that say where it is."""
    asker: Asker = Asker.MANIFEST
    logs: str | None = None
    """Where no line of the ranks stands above: the command that shows them."""


_ABOVE = (
    ("Look above for", "Look in `{logs}` for"),
    ("the worker's last lines above", "the worker's last lines (`{logs}`)"),
    ("the lines above", "the ranks' lines (`{logs}`)"),
    ("its own error stands above in the output of rank", "its own error stands in `{logs}`, in the output of rank"),
)


def headline(failure: Failure) -> str:
    """One line. The status's own sentence (`rank 1 on digits-1 was killed by SIGKILL`), or one from what it knows."""
    if failure.message:
        return failure.message.strip().splitlines()[0]
    who = "a worker" if failure.rank is None else f"rank {failure.rank}"
    if failure.pod:
        who += f" on {failure.pod}"
    if failure.signal is not None:
        return f"{who} was killed by {wording.signal_name(failure.signal)}"
    if failure.exit_code is not None:
        return f"{who} ended with exit code {failure.exit_code}"
    return f"{who}: {failure.reason}"


def by_its_words(
    failure: Failure, *, on_a_cluster: bool = False, in_python: bool = False, resumes: bool = False
) -> str | None:
    """For failures whose own words tell more than their reason: what to do, without its full stop (`in_python` and
    `resumes`: as for `own_words.pattern`).
    """
    found = own_words.pattern(failure, on_a_cluster=on_a_cluster, in_python=in_python, resumes=resumes)
    return None if found is None else _filled(found, failure)


def advice(reason: str, failure: Failure | None, retry: Retry, *, resumes: bool = False) -> str:
    """The sentence for a reason, without its full stop. `resumes`: there is a checkpoint from which the job resumes."""
    known = (ADVICE if retry.job is None else ADVICE | ON_A_CLUSTER) | (
        IN_A_BUCKET if retry.storage.startswith("s3://") else {}
    )
    on_a_cluster = retry.job is not None
    own = None if failure is None else by_its_words(failure, on_a_cluster=on_a_cluster, resumes=resumes)
    text = known.get(reason, "Look at the lines above")
    text = in_words_of(retry.asker, text)
    said = own or _filled(text, failure, script=retry.script, storage=retry.storage, name=retry.name, job=retry.job)
    for above, there in _ABOVE if retry.logs is not None else ():
        said = said.replace(above, there.format(logs=retry.logs))
    return said


def _filled(text: str, failure: Failure | None, **more: str | None) -> str:
    where = (failure and own_words.place(failure)) or "the error above"
    rank = "the workers" if failure is None or failure.rank is None else str(failure.rank)
    return text.format(where=where, rank=rank, **more)


def explain(
    job: TrainJob, retry: Retry, stored: str | None = None, *, shown: int | None = None, budget: bool = True
) -> list[str]:
    """Lines for a job that has failed: the cause, said once, and its traceback; what is saved; why it was not started
    again; what to do next.

    `stored`: the newest checkpoint on storage, where somebody looked; the status knows those of this run alone.
    `shown`: the attempt whose lines had the traceback already. `budget`: False where the loop was inside somebody's
    process.
    """
    status = job.status
    failed, failure = status.condition("Failed"), status.last_failure
    reason = failed.reason if failed else "Failed"
    verdict = failed.message if failed else ""
    last = []
    named: Callable[[str], str] = reason_here if retry.job is None else str
    if failure is None:
        lines = [f"{job.metadata.name} failed: {named(reason)}", *_indented(verdict, 2)]
    else:
        lines = [
            f"{job.metadata.name} failed: {headline(failure)}",
            *(_indented(frames(failure), 4) if shown is None else []),
        ]
        above = "" if shown is None or not budget else ", its traceback is above"
        above += f", in attempt {shown}" if above and shown != failure.attempt else ""
        lines.append(f"  [{named(failure.reason)} in attempt {failure.attempt}{above}{_victims(failure)}]")
        lines += _repeated(status, failure) if reason in _BUDGET else []
        why = why_no_more(verdict, failure)
        if budget:
            last = [f"  {named(reason)}: {why}"] if why else [] if reason == failure.reason else [f"  {named(reason)}"]
    latest = status.checkpoint.latest
    if latest is not None and stored is not None and is_newer(stored, latest.id):
        latest = None  # the status had not heard of it yet
    if (seen := status.progress.non_finite) is not None:
        said = wording.non_finite(seen.metric, seen.value, seen.step, seen.position, seen.count)
        lines.append(f"  before that, {said}")
    earlier = stored or (status.attempt.resumed_from if status.attempt else None)
    own = stored is not None and status.attempt is not None and stored.startswith(f"{status.attempt.run}-")
    lines.append(
        f"  saved: checkpoint {latest.id}{_at_step(latest.step)}"
        if latest
        else f"  saved: checkpoint {stored}"
        if own
        else f"  saved: {wording.from_before(earlier)}"
        if earlier
        else "  saved: no checkpoint yet"
    )
    return [*lines, *last, *next_steps(reason, failure, retry, resumes=bool(latest or earlier))]


_BUDGET = (contract.REASON_LIMIT, contract.REASON_NO_PROGRESS)
"""Verdicts that speak of no cause."""


def _repeated(status: TrainJobStatus, failure: Failure) -> list[str]:
    """That attempts in a row ended by this cause, and whether at the same point."""
    in_a_row: list[HistoryEntry] = []
    for entry in reversed(status.history):
        if not same_error.same_sentence(entry.message or "", headline(failure)):
            break
        in_a_row.append(entry)
    if len(in_a_row) < 2:
        return []
    places = {entry.position for entry in in_a_row}
    at = f", each after report {in_a_row[0].position}" if len(places) == 1 and in_a_row[0].position else ""
    between = "and" if len(in_a_row) == 2 else "to"
    return [f"  attempts {in_a_row[-1].attempt} {between} {in_a_row[0].attempt} ended by the same cause{at}"]


def frames(failure: Failure) -> str:
    """The traceback without the line that the headline ends with."""
    lines = (failure.traceback or "").rstrip().splitlines()
    said = headline(failure)
    told = [at for at, line in enumerate(lines) if line and not line.startswith(" ") and said.endswith(line)]
    return "\n".join(line for at, line in enumerate(lines) if at not in told[-1:])


def why_no_more(verdict: str, failure: Failure) -> str:
    """What a verdict says beside the cause: the budget, or that a restart cannot help."""
    said = verdict.split("; first cause of the last: ")[0].strip()
    cause = next((each for each in (failure.message.strip(), headline(failure)) if each and said.startswith(each)), "")
    return said.removeprefix(cause).removeprefix("; ")


def _indented(text: str, by: int) -> list[str]:
    return [" " * by + line for line in text.rstrip().splitlines()]


def _victims(failure: Failure) -> str:
    return f"; {wording.count(failure.victims, 'other rank')} ended because of it" if failure.victims else ""


def next_steps(reason: str, failure: Failure | None, retry: Retry, *, resumes: bool = False) -> list[str]:
    """What to do about a failure that ended a job for that reason, and what starting it again then does."""
    cause = failure.reason if failure is not None and reason in _BUDGET else reason
    effect = "resumes from that checkpoint" if resumes else "starts again"
    said, command = advice(cause, failure, retry, resumes=resumes), retry.command
    takes_arguments = command.startswith("tj run ") and " -f " not in command
    if failure is not None and own_words.is_fit_of_ranks(failure):
        return ["next: Start the script itself, as the sentence above says: fit() starts the ranks."]
    if failure is not None and takes_arguments and own_words.is_about_arguments(failure):
        command = f"{command.partition(' -- ')[0]} -- ..."
    if failure is not None and takes_arguments and own_words.is_of_another_model(failure, resumes=resumes):
        command, effect = started_over(command), "starts from the beginning"
    if failure is not None and (before := own_words.checkpoint_before(failure.message)) is not None:
        command = resuming_from(command, before)
    return [f"next: {said}{'' if said.endswith('?') else '.'}", f"      then `{command}` {effect}."]


def started_over(command: str) -> str:
    """The command with --fresh, and nothing to resume from."""
    own, others = _own_words(command)
    if "--resume-from" in own:
        at = own.index("--resume-from")
        del own[at : at + 2]
    own = [word for word in own if word != "--fresh" and not word.startswith("--resume-from=")]
    return shlex.join([*own, "--fresh", *others])


def resuming_from(command: str, checkpoint: str) -> str:
    """The command with another checkpoint behind its --resume-from; as it is where it has none."""
    return with_value(command, "--resume-from", checkpoint)


def with_value(command: str, option: str, value: str) -> str:
    """The command with that value for an option that it has."""
    own, others = _own_words(command)
    for at, word in enumerate(own):
        if word == option and at + 1 < len(own):
            own[at + 1] = value
        elif word.startswith(f"{option}="):
            own[at] = f"{option}={value}"
    return shlex.join([*own, *others])


def _own_words(command: str) -> tuple[list[str], list[str]]:
    """The command's own words, and the script's: from -- on."""
    words = shlex.split(command)
    end = words.index("--") if "--" in words else len(words)
    return words[:end], words[end:]


def _at_step(step: int | None) -> str:
    return "" if step is None else f" at step {step}"

"""The TrainJob object, version v1alpha1: spec, status, conditions.

Called by the operator, the CLI and the launcher; `crd.py` generates the CRD from these models. Field descriptions are
what `kubectl explain` shows. Models are frozen: change one with `model_copy(update=...)`. A field that nothing acts on
yet is not here; unknown fields of the spec are refused, those of status left alone.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AliasGenerator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from trainjob_api import contract

PATH_LIMIT = 1024
"""Characters of a path in a spec; the CRD's rules read paths, so they are bounded."""


class Model(BaseModel):
    """Base of all parts: camelCase in JSON, snake_case in Python, frozen, no unknown fields."""

    model_config = ConfigDict(
        alias_generator=AliasGenerator(alias=to_camel),
        populate_by_name=True,
        frozen=True,
        extra="forbid",
    )

    def to_json(self) -> dict[str, Any]:
        """The JSON form, without absent fields."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


# --- Spec ------------------------------------------------------------------------------------------------------------


class Rendezvous(Model):
    """How the ranks of an attempt find each other."""

    backend: Literal["auto", "gloo", "nccl"] = Field(
        "auto", description="Process group backend; auto: nccl where the trainer has GPUs, else gloo."
    )
    port: int = Field(29500, ge=1024, le=65471, description="Attempt n listens on port + n mod 64.")
    timeout_seconds: int = Field(1800, ge=1, description="Time-out of the process group's collectives.")


class Staging(Model):
    """The volume that staged checkpoints and TMPDIR live in."""

    medium: Literal["", "Memory"] = Field(
        "", description="emptyDir medium; Memory counts against the container's limit."
    )
    size_limit: str | None = Field(None, max_length=32, description="emptyDir size limit, for example 20Gi.")


class S3(Model):
    """How the store behind s3:// is reached."""

    endpoint_url: str | None = Field(
        None,
        alias="endpointURL",
        max_length=PATH_LIMIT,
        description="For example https://minio.storage:9000. Absent: AWS, or what the pods' environment says.",
    )
    region: str | None = Field(
        None, max_length=63, description="The bucket's region. Absent: what the pods' environment says, else us-east-1."
    )
    credentials_secret: str | None = Field(
        None,
        max_length=253,
        description="Secret in the job's namespace with AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and perhaps "
        "AWS_SESSION_TOKEN. Absent: boto3 looks in the "
        "pods' environment, files, web identity and instance credentials.",
    )
    ca_config_map: str | None = Field(
        None,
        max_length=253,
        description="ConfigMap in the job's namespace with the certificates that vouch for the endpoint's, in PEM "
        "under the key ca.crt. Absent: those of boto3, or "
        "what AWS_CA_BUNDLE in the pods' environment names.",
    )


class CheckpointSpec(Model):
    """Where checkpoints go, which are kept, and what a new run starts from."""

    storage: str | None = Field(
        None,
        max_length=PATH_LIMIT,
        description="Folder on a volume that all workers mount, as an absolute path, or s3://bucket/folder. Absent: "
        "checkpoints survive processes, not pods.",
    )
    s3: S3 | None = Field(None, description="How s3:// is reached.")
    resume_from: str = Field(
        "auto",
        max_length=PATH_LIMIT,
        description="auto: resume where an earlier run of this name stopped, unless it completed; none: start over; "
        "or the path or s3:// URI of a checkpoint.",
    )
    keep: int | None = Field(
        None, ge=1, description="How many checkpoints to keep; absent: all. The latest is always kept."
    )
    score_attribute: str | None = Field(
        None,
        max_length=256,
        description="Reported metric by which the best are kept; a dot reaches into nested metrics. Absent: the "
        "newest are kept.",
    )
    score_order: Literal["max", "min"] = Field("max", description="Whether a higher or a lower score is better.")
    strict: bool = Field(
        False,
        description="true: two ranks that give different bytes under one file name fail report(); false: the lowest "
        "rank's counts, with a warning.",
    )
    on_upload_failure: Literal["Continue", "Fail"] = Field(
        "Continue",
        description="When a checkpoint cannot be stored. Continue: training continues, the condition Degraded says "
        "CheckpointFailing; Fail: report() raises on every rank.",
    )
    staging: Staging = Field(Staging(), description="The volume for staged checkpoints and temporary files.")


class FailureRule(Model):
    """What a rank's exit code means; the first rule that matches wins."""

    exit_codes: list[Annotated[int, Field(ge=1, le=255)]] = Field(
        min_length=1,
        max_length=64,
        json_schema_extra={"x-kubernetes-list-type": "set"},
        description="Exit codes that this rule is for; 128 + n stands for signal n.",
    )
    action: Literal["Fail", "Restart", "Ignore"] = Field(
        description="Fail: the job fails at once. Restart: counted as a failure. Ignore: restart, not counted."
    )


class FailurePolicy(Model):
    """How many failures the job may survive."""

    max_failures: int = Field(
        3,
        ge=-1,
        description="Failures that are answered with a restart; -1: no limit; 0: the first failure fails the job.",
    )
    max_preemptions: int = Field(
        -1,
        ge=-1,
        description="Preemptions (disrupted pods, nodes that are taken away) that are answered with a restart; -1: "
        "no limit. A budget of its own.",
    )
    rules: list[FailureRule] = Field(
        default_factory=list, max_length=16, description="Exceptions by exit code; the first match wins."
    )
    no_progress_attempts: int = Field(
        3,
        ge=0,
        description="That many counted failures in a row without a new report, of a job that has reported before, "
        "fail it, and so does the same exception in two workers in a row without one; 0: off.",
    )


_MODULE = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$"


class Runtime(Model):
    """The in-pod runtime."""

    agent: Literal["auto", "Disabled"] = Field(
        "auto",
        description="Disabled: plain environment injection only, one process a pod; report() and checkpoints are not "
        "served.",
    )
    prefork: Literal["auto", "Always", "Never"] = Field(
        contract.PREFORK_DEFAULT,
        description="Start ranks as forks of a process in each pod that has imported torch already; a killed rank is "
        "then back without importing it again. auto: on CPUs and NVIDIA GPUs, where nothing speaks against "
        "it. For `python script.py` and `python -m module` alone.",
    )
    preload: list[Annotated[str, Field(max_length=200, pattern=_MODULE)]] | None = Field(
        None,
        max_length=64,
        description="Modules that this process imports, for example [torch, torch._dynamo, transformers]. Absent: "
        "torch and what its first step needs, if the script imports it.",
    )
    spare_workers: int = Field(
        0,
        ge=0,
        le=1000,
        description="Workers that are up beside those that train, hold what they ask for, and take the place of one "
        "that is lost at once. They come once all workers train. Edits take effect while the job runs.",
    )


class Hang(Model):
    """What happens when no step comes any more, or a rank's process is stopped."""

    after_seconds: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto",
        description="Without a report() or log() for so long the job hangs, from its first step on. auto: learned from "
        "its own pace, never below five minutes. Time spent on checkpoints does not count.",
    )
    action: Literal["Restart", "Report", "Off"] = Field(
        contract.HANG_DEFAULT,
        description="Report: the condition Degraded, an event and `tj hang` name the ranks to look at; training is "
        "left alone. Restart: the attempt ends too, counted as a failure. Off: nobody looks.",
    )
    replace_stragglers: bool = Field(
        False,
        description="A worker whose ranks keep the others waiting in each step is replaced, away from its node, at the "
        "next report() with a checkpoint: not counted, and once for each rank. Stragglers are told either way.",
    )


class Elastic(Model):
    """Which other sizes than the wished one (workers) the job may train at."""

    min_workers: int = Field(ge=1, le=10000, description="Fewer workers do not train: the job waits for more.")
    max_workers: int = Field(ge=1, le=10000, description="The most that workers may be set to.")
    allowed_sizes: list[Annotated[int, Field(ge=1, le=10000)]] = Field(
        default_factory=list,
        max_length=64,
        json_schema_extra={"x-kubernetes-list-type": "set"},
        description="The only numbers of workers that train, for example [2, 4, 8]. Absent: each from minWorkers to "
        "maxWorkers.",
    )
    shrink_after_seconds: int = Field(
        30,
        ge=0,
        description="How long the job waits for the replacement of a lost worker before it trains with fewer. After a "
        "preemption, if no node has room for the replacement, it does not wait.",
    )
    grow_after_seconds: int = Field(
        60, ge=0, description="How long further workers must have been up before training continues with them."
    )


Tracker = Annotated[str, Field(max_length=contract.TRACKING_LIMIT, pattern=contract.TRACKING_PATTERN)]


class TrainJobSpec(Model):
    """What is to run and how it comes back."""

    workers: int = Field(1, ge=1, le=10000, description="Worker pods. With elastic the wished number, and the most.")
    elastic: Elastic | None = Field(
        None,
        description="Train with fewer workers while not all that are wished can be had. Absent: with just as many.",
    )
    processes_per_worker: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto",
        description="Ranks in each pod. auto: the trainer container's GPU limit for a plain python command, else 1.",
    )
    template: dict[str, Any] = Field(
        description="Pod template; the container named trainer, else the first one, trains."
    )
    rendezvous: Rendezvous = Field(Rendezvous(), description="How the ranks find each other.")
    checkpoint: CheckpointSpec = Field(CheckpointSpec(), description="Where checkpoints go and what a run starts from.")
    failure_policy: FailurePolicy = Field(FailurePolicy(), description="How many failures the job may survive.")
    hang: Hang = Field(Hang(), description="What happens when no step comes any more, or a rank's process is stopped.")
    runtime: Runtime = Field(Runtime(), description="The in-pod runtime.")
    tracking: list[Tracker] = Field(
        default_factory=list,
        max_length=contract.TRACKED_LIMIT,
        json_schema_extra={"x-kubernetes-list-type": "set"},
        description="Experiment trackers that rank 0's agent feeds with the job's reports: csv, tensorboard (=FOLDER), "
        "mlflow (=URI), wandb (=PROJECT), for example [mlflow=http://mlflow:5000]. Edits take effect while "
        "the job runs.",
    )
    suspend: bool = Field(
        False,
        description="true: no pods, from the next report() with a checkpoint on (see boundaryTimeoutSeconds); training "
        "resumes from the newest checkpoint once it is false again.",
    )
    managed_by: str | None = Field(
        None,
        max_length=63,
        description="Name of the controller that looks after this job; any but trainjob.dev/operator: the operator "
        "leaves it alone. Absent: the operator's. It cannot be changed.",
    )
    startup_deadline_seconds: int | None = Field(
        None,
        ge=1,
        description="From the moment that all pods of a start are scheduled until its ranks run; later: the job fails.",
    )
    active_deadline_seconds: int | None = Field(
        None, ge=1, description="Longest time that the job may be active; suspended time does not count."
    )
    boundary_timeout_seconds: int = Field(
        60,
        ge=0,
        description="How long a planned change (another size, a restart, a suspension) waits for the next report() "
        "with a checkpoint before it stops the ranks; 0: not at all.",
    )
    ttl_seconds_after_finished: int | None = Field(
        None, ge=0, description="Delete the TrainJob this long after it finished."
    )
    pod_cleanup: Literal["Running", "All", "None"] = Field(
        "Running", description="What becomes of pods at the end: Running deletes those that still run after 30 s."
    )


# --- Status ----------------------------------------------------------------------------------------------------------


class StatusModel(Model):
    """Base of the parts of status. What another version of the operator wrote there is not read, and no trouble."""

    model_config = ConfigDict(extra="ignore")


Truth = Literal["True", "False", "Unknown"]
"""Of a condition."""


class Condition(StatusModel):
    """A condition in the shape of metav1.Condition."""

    type: str = Field(description="Kind of the condition.")
    status: Truth = Field(description="Whether it holds.")
    reason: str = Field(description="One CamelCase word: why.")
    message: str = Field("", description="One sentence for people.")
    last_transition_time: datetime = Field(description="When status changed last.")
    observed_generation: int | None = Field(None, description="The generation of the spec that this speaks of.")


class PartsMs(StatusModel):
    """How an attempt began, part by part, each in milliseconds; absent: it has not been over, or nobody told."""

    # One after the other; those from `stopped` on are agents' words. docs/recovery.md tells what is measured where.
    detected: int | None = Field(
        None, ge=0, description="From the break of the attempt before to the decision that it is over."
    )
    waited: int | None = Field(
        None, ge=0, description="From there to the write that begins this one: 0, or pods, nodes, a back-off."
    )
    decided: int | None = Field(None, ge=0, description="The write, and its way to the last agent.")
    stopped: int | None = Field(None, ge=0, description="Until the ranks of the attempt before were gone.")
    joined: int | None = Field(None, ge=0, description="Until rank 0's agent had gathered all and chosen a checkpoint.")
    forked: int | None = Field(None, ge=0, description="Until the ranks were started.")
    group: int | None = Field(None, ge=0, description="Until they had a process group, as far as the library sees it.")
    restored: int | None = Field(None, ge=0, description="Until they had read the checkpoint.")
    first_step: int | None = Field(None, ge=0, description="Until the first report() or log().")


class Forks(StatusModel):
    """How the attempt's ranks were started, as far as its members' agents have told."""

    ranks: int = Field(0, ge=0, description="As forks of a process that had imported torch already.")
    reason: str | None = Field(
        None,
        max_length=contract.MESSAGE_LIMIT,
        description="Why others started in new interpreters; absent: there are none.",
    )
    learned: list[Annotated[str, Field(max_length=253)]] = Field(
        default_factory=list,
        max_length=contract.LEARNED_LIMIT,
        description="Packages that scripts had imported by their first step, which the next start does not import "
        "again.",
    )


class StoreOfAttempt(S3):
    """How an attempt's store behind s3:// is reached: checkpoint.s3 as it was when it began."""

    model_config = ConfigDict(extra="ignore")


class Attempt(StatusModel):
    """One start of the ranks; the number rises with each start, restart, resize and resume."""

    number: int = Field(ge=1, description="Raised at each start, restart, resize and resume.")
    state: Literal["Running", "Ended"] = Field(description="Running until the write that ends it.")
    started_at: datetime = Field(description="When the attempt was committed.")
    running_at: datetime | None = Field(None, description="When all its ranks had been started.")
    ended_at: datetime | None = Field(None, description="When its end was committed.")
    members: str = Field(description="Slots of its workers in index order, as ranges: 0-5,7.")
    members_digest: str | None = Field(
        None, description="Digest of the members' pod UIDs: a pod of a member's name that came later is no member."
    )
    workers: int = Field(ge=1, description="Number of members.")
    wished: int | None = Field(None, description="spec.workers when it began.")
    world_size: int = Field(ge=1, description="Number of ranks.")
    cause: str = Field(description="Why it began.")
    end_cause: str | None = Field(None, description="Why it ended.")
    resumed_from: str | None = Field(None, description="The checkpoint that its ranks resumed from.")
    succeeded: str = Field("", description="Without the agent: slots whose trainer has ended with success, as ranges.")
    run: int | None = Field(None, description="The run that it belongs to.")
    parts_ms: PartsMs | None = Field(None, description="How it began, part by part, in milliseconds.")
    forks: Forks | None = Field(None, description="How its ranks were started.")
    make: str | None = Field(
        None,
        max_length=63,
        description="What it was made of: digests of the template and of checkpoint, rendezvous, processesPerWorker "
        "and runtime when it began, as on its pods' label trainjob.dev/make. Edits take effect at the next start.",
    )
    storage: str | None = Field(
        None,
        max_length=PATH_LIMIT,
        description="Where its checkpoints go: checkpoint.storage as it was when it began; empty: nowhere.",
    )
    s3: StoreOfAttempt | None = Field(
        None, description="How that is reached, if it is at s3://: checkpoint.s3 as it was when it began."
    )
    open_end: bool | None = Field(
        None,
        description="It ended while nobody was left who knew whether training had completed: a worker with an agent "
        "looks before an attempt begins that would not see its end record.",
    )
    from_spares: str | None = Field(
        None, max_length=1024, description="Members that were spare workers until it began, as ranges: 3."
    )


class WorkersStatus(StatusModel):
    """Workers, counted."""

    ready: int = Field(0, description="Workers whose agent (plain mode: container) is up.")
    desired: int = Field(0, description="Workers that the job should have.")
    summary: str | None = Field(
        None, description="For display: ready/desired; of a job that is Complete the workers that completed it, as 2/2."
    )
    counted_at: datetime | None = Field(
        None,
        description="When counts, or conditions of a start on its usual way, were last written; alone they wait, 5 "
        "to 30 s.",
    )
    spares: str | None = Field(
        None, description="For display: spare workers that are ready, of runtime.spareWorkers; absent: none are wished."
    )


class Failures(StatusModel):
    """The budget, spent."""

    counted: int = Field(0, description="Failures that count against maxFailures.")
    preemptions: int = Field(0, description="Preemptions; they count against maxPreemptions alone.")
    since_progress: int = Field(0, description="Counted failures in a row without a new report.")
    early_in_row: int = Field(0, description="Ends in a row soon after the start; they make the next start wait.")
    strikes: dict[str, int] = Field(
        default_factory=dict, description="Failures of each slot without progress; at two the pod is replaced."
    )
    avoid_nodes: list[str] = Field(
        default_factory=list, max_length=8, description="Nodes that replacements keep away from."
    )
    last_cause: str | None = Field(None, description="Why the last attempt ended.")


class Timing(StatusModel):
    """What the deadlines and the back-off are measured by."""

    active_seconds: float = Field(0, description="Active time before activeSince.")
    active_since: datetime | None = Field(None, description="When the job last became active.")
    scheduled_at: datetime | None = Field(None, description="When all pods of this start were scheduled.")
    retry_at: datetime | None = Field(None, description="The next attempt does not begin before.")
    gang_retry_at: datetime | None = Field(
        None, description="Only a part of the workers found a node: pods are created again at this time."
    )
    gang_tries: int = Field(0, description="How often in a row the pods of a start were given back.")
    spare_retry_at: datetime | None = Field(
        None, description="A spare worker was lost or found no node: none is made before."
    )
    spare_tries: int = Field(0, description="How often in a row that was so.")
    finished_at: datetime | None = Field(None, description="When the job completed or failed.")


class NonFinite(StatusModel):
    """A metric that became NaN or infinite in this attempt."""

    metric: str = Field(description="The first one, nested names with dots.")
    value: str = Field(description="NaN, Infinity or -Infinity.")
    step: int | None = Field(None, description="The step of that report or log row.")
    position: int = Field(0, description="Reports before it.")
    count: int = Field(1, description="Reports and log rows with such a value so far.")


class Progress(StatusModel):
    """Where training stands."""

    position: int = Field(0, description="Reports along the lineage; the highest value that was ever reached.")
    step: int | None = Field(None, description="Step of the last report.")
    total_steps: int | None = Field(None, description="Steps that the script announced.")
    epoch: int | None = Field(None, description="Epoch of the last report.")
    percent: int | None = Field(None, description="step of totalSteps.")
    last_report_time: datetime | None = Field(None, description="When the last report was.")
    seconds_per_step: float | None = Field(
        None, description="How long a step took in the last minute of the attempt that told of the last report."
    )
    metrics: dict[str, float] = Field(default_factory=dict, description="Up to 16 numbers of the last report.")
    non_finite: NonFinite | None = Field(None, description="A metric is, or was, no number; JSON has no NaN above.")
    summary: str | None = Field(
        None,
        description="One metric, for display: the one that checkpoints are scored by, else the loss, else the first.",
    )
    written_at: datetime | None = Field(
        None, description="When progress or checkpoints were last written here; they are at most once in 10 s."
    )


class CheckpointView(StatusModel):
    """One checkpoint, for display."""

    id: str = Field(description="run-attempt-index.")
    step: int | None = Field(None, description="Step at which it was taken.")
    uri: str | None = Field(None, description="Its folder on storage.")
    time: datetime | None = Field(None, description="When it was committed.")
    bytes: int = Field(0, description="Size of all its files.")


class CheckpointStatus(StatusModel):
    """Checkpoints, for display; nothing is decided from them."""

    latest: CheckpointView | None = Field(None, description="The newest committed one.")
    best: CheckpointView | None = Field(None, description="The one with the best score.")
    count: int = Field(0, description="Committed checkpoints of this run.")


class Failure(StatusModel):
    """The first cause of the last failure."""

    attempt: int = Field(description="The attempt that failed.")
    time: datetime = Field(description="When.")
    reason: str = Field(description="One CamelCase word.")
    rank: int | None = Field(None, description="The rank that broke first.")
    pod: str | None = Field(None, description="Its pod.")
    node: str | None = Field(None, description="Its node.")
    exit_code: int | None = Field(None, description="Its exit code.")
    signal: int | None = Field(None, description="The signal that ended it.")
    message: str = Field("", max_length=contract.MESSAGE_LIMIT, description="What happened.")
    traceback: str | None = Field(None, max_length=contract.TRACEBACK_LIMIT, description="User frames first.")
    victims: int = Field(0, description="Ranks that ended because of this one.")


class HangView(StatusModel):
    """Ranks that hang, or did: the newest verdict."""

    attempt: int = Field(description="The attempt in which it was.")
    since: datetime = Field(description="The last step before, or when a rank's process was stopped.")
    message: str = Field("", max_length=contract.MESSAGE_LIMIT, description="Who waits where, and at whom to look.")
    ranks: list[int] = Field(
        default_factory=list, max_length=contract.HANG_RANKS_LIMIT, description="The ranks to look at."
    )
    stacks: str | None = Field(
        None, max_length=contract.STACKS_LIMIT, description="Where all ranks stood, those that stood together in one."
    )


class StragglerView(StatusModel):
    """A rank that keeps the others waiting. Shares of its time: 0 to 1."""

    rank: int = Field(description="Which.")
    pod: str | None = Field(None, description="Its pod.")
    node: str | None = Field(None, description="Its node.")
    behind: float = Field(description="Of each step: what the others wait for it.")
    data: float = Field(description="It waits for its batch.")
    compute: float = Field(description="Its main thread uses a processor.")
    held: float = Field(description="It has work, and no free processor, or is stopped, or waits for a disk.")
    wait: float = Field(description="The rest, mostly in collectives.")


class StragglersView(StatusModel):
    """Ranks that keep the others waiting, or did: the newest verdict."""

    attempt: int = Field(description="The attempt in which it was.")
    since: datetime = Field(description="When it was found.")
    message: str = Field("", max_length=contract.MESSAGE_LIMIT, description="Who, where, how much, and with what.")
    ranks: list[StragglerView] = Field(
        default_factory=list, max_length=contract.STRAGGLERS_LIMIT, description="Those that cost most."
    )


class SuspectNode(StatusModel):
    """A node on which the job broke, or was slow, by a cause that looks like a machine's."""

    node: str = Field(description="Which.")
    time: datetime = Field(description="When, the last time.")
    reason: str = Field(description="One CamelCase word.")


class StacksView(StatusModel):
    """Where the ranks were when somebody asked last."""

    request: str = Field(
        max_length=contract.STACKS_REQUEST_LIMIT, description="The trainjob.dev/stacks annotation that this answers."
    )
    attempt: int = Field(description="The attempt in which it was.")
    stacks: str = Field(
        "", max_length=contract.ASKED_STACKS_LIMIT, description="Where all ranks were, those together in one."
    )


class Verdict(StatusModel):
    """What becomes of the job unless a fresh worker finds that its run had completed."""

    reason: str | None = Field(
        None, description="Reason of the condition Failed. Absent: the job continues, with workers without agents."
    )
    message: str = Field("", max_length=contract.MESSAGE_LIMIT, description="Its message.")
    since: datetime | None = Field(
        None, description="When the look was called for, or the spec was edited last since then."
    )
    nothing_found_at: datetime | None = Field(
        None, description="When a look found nothing of the run. An edit of the spec takes it back."
    )


class HistoryEntry(StatusModel):
    """An attempt that is over."""

    attempt: int = Field(description="Its number.")
    cause: str = Field(description="Why it began.")
    end_cause: str | None = Field(None, description="Why it ended.")
    started_at: datetime = Field(description="When it began.")
    ended_at: datetime | None = Field(None, description="When it ended.")
    world_size: int = Field(description="Number of ranks.")
    resumed_from: str | None = Field(None, description="The checkpoint that its ranks resumed from.")
    down_seconds: float | None = Field(None, description="From the end of the attempt before to this one's begin.")
    position: int | None = Field(None, description="Reports along the lineage when it ended.")
    message: str | None = Field(None, max_length=contract.ENDED_LIMIT, description="What ended it, in a sentence.")
    lost_seconds: float | None = Field(
        None, description="Steps since its newest checkpoint when it ended, in seconds: they are done again."
    )
    parts_ms: PartsMs | None = Field(None, description="How it began, part by part, in milliseconds.")
    from_spares: str | None = Field(
        None, max_length=1024, description="Members that were spare workers until it began, as ranges: 3."
    )


class Seconds(StatusModel):
    """The job's time since the operator first looked at it; each second is in one of these."""

    starting: float = Field(0, ge=0, description="Until the ranks could step, at the first start and after a resume.")
    productive: float = Field(0, ge=0, description="Steps that count.")
    lost: float = Field(0, ge=0, description="Steps since the newest checkpoint when an attempt broke: done again.")
    checkpoint_stall: float = Field(0, ge=0, description="All ranks waited in report() for a checkpoint to be safe.")
    stalled: float = Field(0, ge=0, description="No step came, for longer than a minute and ten usual ones.")
    down: float = Field(0, ge=0, description="From a break until the ranks could step again.")
    suspended: float = Field(0, ge=0, description="spec.suspend was true.")


class Goodput(StatusModel):
    """Where the job's time went. Written with what is written anyway."""

    ratio: float | None = Field(None, description="seconds.productive of all seconds but those suspended.")
    summary: str | None = Field(None, description="The same for display: 97.3%.")
    largest_loss: str | None = Field(
        None, description="The field of seconds, productive and suspended aside, with most."
    )
    at: datetime = Field(description="Up to when seconds are counted.")
    seconds: Seconds = Field(Seconds(), description="Each second once.")
    settled: Seconds = Field(Seconds(), description="Of them, those before settledAt: they do not change any more.")
    settled_at: datetime = Field(description="When an attempt, a suspension or the job ended last.")


class Growth(StatusModel):
    """More workers of an elastic job are up than train: it continues with them once growAfterSeconds are over. Before a
    start: enough are up, and it waits a moment for those that are coming up.
    """

    workers: int = Field(ge=1, description="As many as it could continue with when this began.")
    since: datetime = Field(description="Since when it could continue with more than it has.")


class GaveWay(StatusModel):
    """An elastic job continues with fewer workers than it is told to have, because another job of its namespace had no
    room for those without which it cannot start.
    """

    to: str = Field(description="Name of the other job.")
    uid: str = Field(description="Its UID.")
    workers: int = Field(ge=1, description="With so many this job continues until the other one trains.")
    freed: int = Field(0, ge=0, description="Workers that it gave up; 0: it only does without further ones.")
    beside: int = Field(0, ge=0, description="Workers of the other job that had room already.")
    since: datetime = Field(description="When. After five minutes it waits no longer for the other job to start.")


class Boundary(StatusModel):
    """A planned change that waits for the next report() with a checkpoint."""

    cause: str = Field(description="Why the attempt is to end.")
    since: datetime = Field(description="When that was wished; boundaryTimeoutSeconds later it waits no longer.")
    gone_by: datetime | None = Field(
        None, description="A worker's pod is going away: when the first of them is gone, at the latest."
    )
    grace_seconds: float | None = Field(
        None, description="With goneBy: the shortest grace period of those that go, from their SIGTERM on."
    )
    leaving: str = Field("", description="The workers that are to go, as ranges of slot numbers: 1,3.")


class TrainJobStatus(StatusModel):
    """What is. Written by the operator alone."""

    observed_generation: int | None = Field(None, description="The generation of the spec that this status answers.")
    phase: str | None = Field(None, description="Summary of the conditions, for display.")
    reason: str | None = Field(
        None,
        description="Why the job is in this phase, for display: what holds it up, how it ended, the first cause of "
        "its failure.",
    )
    selector: str | None = Field(None, description="Label selector of the pods, for the scale subresource.")
    conditions: list[Condition] = Field(
        default_factory=list,
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        description="Conditions in the shape of metav1.",
    )
    slots: str = Field("", description="Pods that may exist, as ranges of slot numbers: 0-5,7.")
    spares: str = Field(
        "", description="Those of slots whose pods are spare workers: they are in no attempt until one takes them."
    )
    next_slot: int = Field(0, ge=0, description="The next unused slot number.")
    attempt: Attempt | None = Field(None, description="The newest attempt.")
    workers: WorkersStatus = Field(WorkersStatus(), description="Workers, counted.")
    boundary: Boundary | None = Field(
        None, description="A planned change waits for the next report() with a checkpoint."
    )
    growth: Growth | None = Field(
        None, description="An elastic job is about to begin, or to continue with more workers."
    )
    gave_way: GaveWay | None = Field(None, description="An elastic job makes room for another one.")
    gave_way_in_vain: dict[str, datetime] = Field(
        default_factory=dict,
        description="By UID: jobs that did not start although this one made room, and when; for an hour they get none.",
    )
    failures: Failures = Field(Failures(), description="The budget, spent.")
    timing: Timing = Field(Timing(), description="What deadlines and back-off are measured by.")
    progress: Progress = Field(Progress(), description="Where training stands.")
    checkpoint: CheckpointStatus = Field(CheckpointStatus(), description="Checkpoints, for display.")
    last_failure: Failure | None = Field(None, description="The first cause of the last failure.")
    hang: HangView | None = Field(None, description="The newest hang; Degraded says Hang while it lasts.")
    suspects: list[SuspectNode] = Field(
        default_factory=list,
        max_length=contract.SUSPECTS_LIMIT,
        description="Nodes on which it broke or was slow within the hour before the newest of them, by causes that "
        "look like a machine's: with those of other jobs they tell which nodes new pods keep away from.",
    )
    stragglers: StragglersView | None = Field(
        None, description="The newest stragglers; Degraded says Straggler while they are."
    )
    replaced_ranks: list[int] = Field(
        default_factory=list,
        max_length=contract.STRAGGLERS_REPLACED_LIMIT,
        description="Ranks whose workers were replaced by hang.replaceStragglers: none is a second time.",
    )
    stacks: StacksView | None = Field(None, description="Where the ranks were when somebody asked last (`tj stack`).")
    verdict: Verdict | None = Field(
        None, description="How the job ends unless a fresh worker finds that its run had completed."
    )
    goodput: Goodput | None = Field(None, description="Where the job's time went.")
    restart: str | None = Field(
        None,
        max_length=contract.RESTART_TOKEN_LIMIT,
        description="The last trainjob.dev/restart annotation that was answered.",
    )
    history: list[HistoryEntry] = Field(
        default_factory=list, max_length=10, description="The last attempts that are over."
    )

    def condition(self, type_: str) -> Condition | None:
        """The condition of that type, or None."""
        return next((c for c in self.conditions if c.type == type_), None)

    def holds(self, type_: str) -> bool:
        """Whether the condition of that type is True."""
        return self.held(type_) is not None

    def held(self, type_: str) -> Condition | None:
        """The condition of that type, if it is True."""
        found = self.condition(type_)
        return found if found is not None and found.status == "True" else None

    @property
    def finished(self) -> bool:
        """Complete or Failed: terminal, nothing runs again."""
        return any(c.status == "True" and c.type in ("Complete", "Failed") for c in self.conditions)


# --- The object ------------------------------------------------------------------------------------------------------


class Metadata(BaseModel):
    """The part of an object's metadata that is acted upon; other fields are kept."""

    model_config = ConfigDict(
        alias_generator=AliasGenerator(alias=to_camel), populate_by_name=True, frozen=True, extra="allow"
    )

    name: str
    namespace: str = "default"
    uid: str = ""
    generation: int = 1
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class TrainJob(Model):
    """A distributed PyTorch training job."""

    api_version: str = contract.API_VERSION
    kind: str = contract.KIND
    metadata: Metadata
    spec: TrainJobSpec
    status: TrainJobStatus = Field(default_factory=TrainJobStatus)

    @property
    def key(self) -> tuple[str, str]:
        """(namespace, name)."""
        return self.metadata.namespace, self.metadata.name

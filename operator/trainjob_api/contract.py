"""Names and shapes that two sides share: the operator, the agent in a worker pod, and the library in a rank.

Standard library only, Python 3.9: every worker imports this. One fact lives here once; the tables in `docs/` are
generated from it. Nothing here decides anything.
"""

from __future__ import annotations

from typing import Any, Dict, Final, List, Literal, Optional, TypedDict

# --- The API group -------------------------------------------------------------------------------------------------
GROUP = "trainjob.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "TrainJob"
PLURAL = "trainjobs"
SHORT_NAME = "tj"

# --- Labels on children, and the container that trains ---------------------------------------------------------------
LABEL_JOB = "trainjob.dev/job"
"""The name of the TrainJob that a pod or Service belongs to."""
LABEL_SLOT = "trainjob.dev/slot"
"""The pod's slot: slots only count up and are never used twice."""
LABEL_MAKE = "trainjob.dev/make"
"""What the pod was made of, as in status.attempt.make: an attempt has pods of one make."""
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
"""`trainjob` on every object that the operator creates."""
MANAGED_BY = "trainjob"
MANAGER = "trainjob.dev/operator"
"""What spec.managedBy names where the operator itself is meant."""
ANNOTATION_CANCELLED = "trainjob.dev/cancelled"
"""On a suspended TrainJob: when `tj cancel` stopped it for good; `tj resume` takes it off. For display: the operator
acts on spec.suspend alone.
"""
TRAINER_CONTAINER = "trainer"
ANNOTATION_RESTART = "trainjob.dev/restart"
"""On a TrainJob, set by its user: whenever it differs from status.restart, the ranks start again, uncounted (`tj
restart` writes the time).
"""
RESTART_TOKEN_LIMIT = 128
"""Characters of ANNOTATION_RESTART that count."""
ANNOTATION_STACKS = "trainjob.dev/stacks"
"""On a TrainJob, set by its user: whenever it differs from status.stacks.request, the running ranks are asked where
they are (`tj stack` writes a fresh one). What follows a STACKS_OF names ranks: all threads of these, 0,3-5.
"""
STACKS_OF = "@"
STACKS_REQUEST_LIMIT = 64
"""Characters of ANNOTATION_STACKS that count, those left out that nobody can see."""
ANNOTATION_AUTHORITY = "trainjob.dev/coordinator-ca"
"""On a worker's pod: the CA that its agent is to believe (PEM). Whoever may change a pod may change what runs in it."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""Passed from the TrainJob's labels to its pods."""

# --- What an installation on a cluster is called (settings.py has the flags, the chart the values) --------------------
COORDINATOR_SERVICE = "trainjob-coordinator"
"""The selector-less Service in the operator's namespace through which agents reach the leading operator."""
COORDINATOR_SECRET = "trainjob-coordinator"
"""The create-if-absent Secret in the operator's namespace: CA and master key."""
COORDINATOR_PORT = 8443
"""Port of the coordinator, HTTPS."""
METRICS_PORT = 8080
"""Port of /metrics, /healthz and /readyz, plain HTTP."""
LEASE_NAME = "trainjob-operator"
"""The Lease that the leading operator holds."""
CLAIM_LEASE = "trainjob-served-by"
"""The Lease in each namespace with TrainJobs that says which installation of the operator serves it."""
TOKEN_AUDIENCE = "coordinator.trainjob.dev"
"""Audience of the service-account token that an agent shows."""

# --- Folders of a worker container on a cluster -----------------------------------------------------------------------
RUNTIME_DIR = "/trainjob"
"""Where the init container puts agent and library."""
RUNTIME_START = f"{RUNTIME_DIR}/start"
"""The program in it that finds the image's Python and becomes the agent; the user's command follows behind `--`."""
RUNTIME_PACKAGES = "packages"
"""Folder in RUNTIME_DIR, beside `lib`: boto3 and what it needs, for the storage child where the image has none of
its own.
"""
TOKEN_DIR = "/var/run/secrets/trainjob.dev"
"""Where the projected token is mounted."""
TOKEN_FILE = f"{TOKEN_DIR}/token"
AUTHORITY_FILE = f"{TOKEN_DIR}/ca.pem"
"""What ANNOTATION_AUTHORITY says, a minute or two after it was changed."""
WORK_DIR = "/var/lib/trainjob"
"""Where the pod's own volume is mounted (staging, TMPDIR of the ranks, logs, sockets)."""
S3_CA_DIR = "/etc/trainjob/s3-ca"
"""Where the ConfigMap is mounted that spec.checkpoint.s3.caConfigMap names."""
S3_CA_KEY = "ca.crt"
"""Its key with the authorities' certificates, in PEM."""
S3_CA_FILE = f"{S3_CA_DIR}/{S3_CA_KEY}"
"""What AWS_CA_BUNDLE says then."""
TERMINATION_LOG = "/dev/termination-log"
"""The container's termination message: the agent's last word, one line (last_word.py)."""
TERMINATION_LIMIT = 1024
"""Bytes of that line."""

# --- What the operator adds to a pod with an agent, by name -----------------------------------------------------------
RUNTIME_CONTAINER = "trainjob-runtime"
"""The init container that fills RUNTIME_DIR."""
RUNTIME_VOLUME = "trainjob-runtime"
WORK_VOLUME = "trainjob-work"
TOKEN_VOLUME = "trainjob-token"
SHM_VOLUME = "trainjob-shm"
S3_CA_VOLUME = "trainjob-s3-ca"

# --- Environment: operator -> agent ----------------------------------------------------------------------------------
ENV_NAMESPACE = "TRAINJOB_NAMESPACE"
"""The job's namespace."""
ENV_JOB = "TRAINJOB_JOB"
"""The job's name."""
ENV_JOB_UID = "TRAINJOB_JOB_UID"
"""The TrainJob's UID: tells a new object of the same name from the old one."""
ENV_SLOT = "TRAINJOB_SLOT"
"""The pod's slot."""
ENV_POD_NAME = "TRAINJOB_POD_NAME"
"""The pod's name."""
ENV_POD_UID = "TRAINJOB_POD_UID"
"""The pod's UID."""
ENV_POD_ADDRESS = "TRAINJOB_POD_ADDRESS"
"""Address under which peers reach this pod: the pod's IP; 127.0.0.1 on the local backend."""
ENV_NODE_NAME = "TRAINJOB_NODE_NAME"
"""The node that the pod runs on."""
ENV_COORDINATOR = "TRAINJOB_COORDINATOR"
"""Base URL of the coordinator, without a trailing slash."""
ENV_WORK_DIR = "TRAINJOB_WORK_DIR"
"""The pod's own volume: staging, TMPDIR of the ranks, logs, sockets. Lives as long as the pod."""
ENV_AGENT_SPEC = "TRAINJOB_AGENT_SPEC"
"""JSON of `AgentSpec`: the part of the job's spec that the agent acts on."""
ENV_PARENT_FD = "TRAINJOB_PARENT_FD"
"""Local backend: a pipe's read end; end of file means that the launcher died."""
ENV_COORDINATOR_CA = "TRAINJOB_COORDINATOR_CA"
"""The CA of the coordinator's certificate, as PEM text; absent: the system's (https) or none (http)."""
ENV_COORDINATOR_CA_FILE = "TRAINJOB_COORDINATOR_CA_FILE"
"""A file with the CA as it is now; read when the one that is believed is not the coordinator's any more."""
ENV_TOKEN_FILE = "TRAINJOB_TOKEN_FILE"
"""A file whose content the agent sends as `Authorization: Bearer ...` with each sync, read anew each time (tokens
rotate); absent: no header.
"""
ENV_MASTER_PORT_ANY = "TRAINJOB_MASTER_PORT_ANY"
"""`1`: rank 0 listens on any free port (local backend, hostNetwork) instead of `rendezvous.port + attempt mod 64`."""

ENV_SHARED_TMP = "TRAINJOB_SHARED_TMP"
"""Local backend: the folder that is TMPDIR of all ranks, whichever worker's; it lives as long as the run."""
ENV_MACHINE_RANKS = "TRAINJOB_MACHINE_RANKS"
"""Local backend, workers without GPUs: `1`: LOCAL_RANK, LOCAL_WORLD_SIZE and NODE_RANK number the ranks on the machine,
which all workers are on, and not those of a worker."""

# --- Environment: agent -> rank (beside torch's own RANK, WORLD_SIZE, ...) -------------------------------------------
ENV_RANK = "RANK"
"""The rank among all processes of the attempt, from 0."""
ENV_LOCAL_RANK = "LOCAL_RANK"
"""The rank among the processes of this pod, from 0; see TRAINJOB_MACHINE_RANKS."""
ENV_WORLD_SIZE = "WORLD_SIZE"
"""Number of ranks of the attempt."""
ENV_LOCAL_WORLD_SIZE = "LOCAL_WORLD_SIZE"
"""Number of ranks in this pod."""
ENV_NODE_RANK = "NODE_RANK"
"""Position of this worker among the members of the attempt, from 0."""
ENV_MASTER_ADDR = "MASTER_ADDR"
"""Address under which rank 0 is reached."""
ENV_MASTER_PORT = "MASTER_PORT"
"""Port on which rank 0 of this attempt listens."""
ENV_JAX_COORDINATOR_ADDRESS = "JAX_COORDINATOR_ADDRESS"
"""MASTER_ADDR and MASTER_PORT as JAX wants them; `jax.distributed.initialize()` needs no arguments."""
ENV_JAX_NUM_PROCESSES = "JAX_NUM_PROCESSES"
"""WORLD_SIZE, as scripts for JAX look for it."""
ENV_JAX_PROCESS_ID = "JAX_PROCESS_ID"
"""RANK, as scripts for JAX look for it."""
ENV_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""Torch's own name. `True`: a process beside rank 0 serves its store at that address, and rank 0 only connects. A rank
takes it out of its environment: what it starts has stores of its own."""
ENV_KEPT_PARENT = "TRAINJOB_KEPT_PARENT"
"""An agent's, `<fd>:<pid>`: a child of its own that is a warm parent already, and the socket to it."""
ENV_LEARN = "TRAINJOB_LEARN"
"""A file in which a rank of each worker lists, at its first step, what its script has imported. Empty: it need not."""
ENV_TMP_MARK = "TRAINJOB_TMP_MARK"
"""What the names contain that Python's tempfile makes up for ranks of this worker and attempt: what killed ranks leave
is known by it, and removed. Everything else in TMPDIR stays for the next attempt."""
ENV_RECYCLED = "TRAINJOB_RECYCLED"
"""A folder with files of a former checkpoint, by their names: who saves under such a name may write over one, whose
memory is there already. Empty: there is none."""
DICT_FILE = "checkpoint.pkl"
"""The file of `Checkpoint.from_dict`."""
SHARD_SUFFIX = ".distcp"
"""Of the files of a sharded state; torch's own name for them."""
RANK_PLACE = (
    ENV_RANK,
    ENV_LOCAL_RANK,
    ENV_WORLD_SIZE,
    ENV_LOCAL_WORLD_SIZE,
    ENV_NODE_RANK,
    ENV_MASTER_ADDR,
    ENV_MASTER_PORT,
)
"""What torch reads of a rank's place in its attempt."""
JAX_PLACE = (ENV_JAX_COORDINATOR_ADDRESS, ENV_JAX_NUM_PROCESSES, ENV_JAX_PROCESS_ID)
"""The same for JAX; ranks that a launcher starts are told by it."""
ENV_ATTEMPT = "TRAINJOB_ATTEMPT"
"""Number of the attempt: raised at each start, restart, resize and resume."""
ENV_RUN = "TRAINJOB_RUN"
"""Number of the run in the job's folder on storage; 1 when the job has no storage."""
ENV_STORAGE = "TRAINJOB_STORAGE"
"""Root of the job's folder on storage (`<storage>/<namespace>/<job>`); empty when the job has no storage."""
ENV_S3_PATH_STYLE = "TRAINJOB_S3_PATH_STYLE"
"""1: an S3 request names its bucket in the path, 0: in the host name; absent: in the path where an endpoint is given
(AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL).
"""
ENV_S3_CHECKSUM = "TRAINJOB_S3_CHECKSUM"
"""What files on S3 are checksummed by: crc64nvme or crc32; absent: crc64nvme where awscrt is installed."""
ENV_S3_RETRY_S = "TRAINJOB_S3_RETRY_SECONDS"
"""Seconds for which a request to S3 that fails for a passing reason is tried again; absent: 60."""
ENV_S3_TIMEOUT_S = "TRAINJOB_S3_TIMEOUT_SECONDS"
"""Seconds after which a stream from or to S3 that stands still is cut; absent: 20."""
ENV_RETURN_FILE = "TRAINJOB_RETURN_FILE"
"""The file in which rank 0 of a TorchTrainer on a cluster leaves what its function returned; its agent brings it to
storage.
"""
ENV_AGENT_SOCKET = "TRAINJOB_AGENT_SOCKET"
"""Path of the Unix socket on which the rank's agent answers."""
ENV_STACK_FOLDER = "TRAINJOB_STACK_FOLDER"
"""The folder with a socket per rank, on which it tells where it stands, and a file into which faulthandler writes the
main thread's stack when the agent sends STACK_SIGNAL to one that does not answer there.
"""
ENV_AGENT_PID = "TRAINJOB_AGENT_PID"
"""Process id of the agent: a rank whose parent is another process ends itself."""
ENV_RANK_PID = "TRAINJOB_RANK_PID"
"""Set by a rank's own boot: the process that is the rank. A child that inherits it is no rank, and is told so."""

ENV_MPI_KEY = "TRAINJOB_MPI_KEY"
"""Where `mpirun` is the command: by which the workers' sides of its start know each other, in this attempt. The ranks
do not have it.
"""
ENV_MPI_SOCKET = "TRAINJOB_MPI_SOCKET"
"""The socket on which the parent of `mpirun` takes what it wants to start on other workers."""
ENV_MPI_TMPDIR = "TRAINJOB_MPI_TMPDIR"
"""TMPDIR of the ranks, in the environment of `mpirun` and its daemons, which have others."""

ENV_BACKEND = "TRAINJOB_BACKEND"
"""spec.rendezvous.backend, resolved: gloo or nccl. Set on the pod; `trainjob.init_process_group()` uses it."""
ENV_RENDEZVOUS_TIMEOUT_S = "TRAINJOB_RENDEZVOUS_TIMEOUT_SECONDS"
"""spec.rendezvous.timeoutSeconds. Set on the pod; `trainjob.init_process_group()` uses it."""

# --- Environment: knobs for users ------------------------------------------------------------------------------------
ENV_IN_PROCESS = "TRAINJOB_IN_PROCESS"
"""A plain `python train.py` becomes a job of one rank in its own process at its first call of the library, as by
trainjob.init(). 1: a job with a new name; another value is the job's name.
"""
IN_PROCESS_MODULE = "trainjob.launch.in_process.starting"
"""Where that begins; the session knows it by name alone."""
STAND_IN_MODULE = "trainjob.launch.in_process.stand_in"
"""What the agent runs as its rank there: it lends its place to the process that trains."""
ENV_VERBOSE = "TRAINJOB_VERBOSE"
"""1: the agent shows everything that ranks print, also the tracebacks of ranks that only lost another (`--verbose`)."""
ENV_BARRIER_WARN_S = "TRAINJOB_BARRIER_WARN_SECONDS"
"""Seconds until a barrier names the missing ranks and where they stand; absent: 60."""
S3_RETRY_S = 60.0
"""Seconds for which a request to S3 is tried again."""
S3_TIMEOUT_S = 20.0
"""Seconds that a stream from or to S3 may stand still."""
S3_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
"""boto3's names for the endpoint of S3; the first one counts more."""
S3_REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")
"""boto3's names for the region; the first one counts more."""
S3_SECRET_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
"""Keys of the Secret that spec.checkpoint.s3.credentialsSecret names, and the variables that carry them; the last
one may be missing.
"""
BARRIER_WARN_S = 60.0
"""After this long a barrier names the missing ranks and where they stand; again after each further interval."""
ENV_BARRIER_TIMEOUT_S = "TRAINJOB_BARRIER_TIMEOUT_SECONDS"
"""Time-out of report(), barrier() and broadcast_from_rank_zero() in seconds; absent: none."""

ENV_DEBUG = "TRAINJOB_DEBUG"
"""Set to anything: an unexpected error of `tj` itself comes with its Python traceback."""

ENV_CODE = "TRAINJOB_CODE"
"""Set in the template by `tj submit`: key, in the job's folder on storage, of the packed code that the agent unpacks
into the trainer's working directory before the first ranks start: `code/<SHA-256>.tar.gz`."""

# --- Times and sizes -------------------------------------------------------------------------------------------------
PORT_SPREAD = 64
"""Attempt n of a job listens on `rendezvous.port + n mod PORT_SPREAD`."""
LONG_POLL_S = 20.0
"""How long the coordinator holds a sync that has nothing new to say."""
SYNC_RETRY_S = 1.0
SYNC_BODY_LIMIT = 256 * 1024
"""Bytes of a sync request's body; larger ones are refused with 413."""
MESSAGE_LIMIT = 1024
"""Characters of an error message in status."""
ENDED_LIMIT = 200
"""The same of an attempt in the history: there are ten of them."""
LEARNED_LIMIT = 64
"""Packages that warm parents have learned to import ahead, as they are told in status."""
MODULES_LIMIT = 2 * MESSAGE_LIMIT
"""Characters in which agents pass on the names of modules that they have learned to import ahead."""
TRACEBACK_LIMIT = 2048
"""Characters of a traceback in status; the last ones are kept."""
STACKS_LIMIT = 4096
"""Characters of what is told of where all ranks stand."""
ASKED_STACKS_LIMIT = 16384
"""The same, where a person has asked; agents count bytes."""
LEAVING_LIMIT = 64
"""Workers that are named as those about to go: every rank hears of them with every answer."""
HANG_RANKS_LIMIT = 16
"""Ranks that are named as those to look at."""
STRAGGLERS_LIMIT = 8
"""Ranks that are named as those that keep the others waiting."""
SUSPECTS_LIMIT = 8
"""Nodes of which a job's status says that it broke or was slow there."""
STRAGGLERS_REPLACED_LIMIT = 16
"""Workers of a job that are replaced because their ranks are slow; then it is not their nodes."""
DEFAULT_GRACE_S = 30
"""Of a pod whose template says nothing of terminationGracePeriodSeconds: Kubernetes' default."""
DRAIN_RESERVE_S = 10.0
"""Of a pod's grace period, what is kept for storing what was saved; before that its ranks may still reach a checkpoint.
"""
METRICS_LIMIT = 16
"""Metrics kept in status.progress."""
NAME_LIMIT = 52
"""Longest job name: `<job>-<slot>` must fit 63 characters with a ten digit slot."""
ELSEWHERE_FILE = ".elsewhere.json"
"""Of a checkpoint whose files user code has put where they stay (UPLOAD_NONE): all that is stored, a note of the place.
"""
STACK_SIGNAL_NAME = "SIGUSR2"
STACK_FILE = "stack-{rank}"
"""In ENV_STACK_FOLDER. By rank, not by process: under a launcher many ranks share what the agent gave to one."""
STANDING_SOCKET = "standing-{rank}"
"""There too: the Unix socket on which a rank tells where it stands (`standing`)."""

# --- Exit codes of the agent (the trainer container) ------------------------------------------------------------------
EXIT_OK = 0
"""The job is complete."""
EXIT_JOB_FAILED = 80
"""The job failed; the first cause stands in the TrainJob's status."""
EXIT_NO_COORDINATOR = 81
"""No coordinator was reached for a long time and nothing was left to do here: the pod is replaced, not counted."""
EXIT_REMOVED = 82
"""This worker is not part of the job any more."""
EXIT_LAUNCHER_DIED = 83
"""Local backend: the launcher is gone; ranks were stopped, the newest checkpoint was finished."""
EXIT_BAD_CONFIG = 84
"""The agent's own environment does not parse: an installation fault, never the user's script."""
EXIT_INTERNAL = 85
"""The agent could not continue: a fault of its own, or of what its container gives it (a full disk, no file
descriptors, a process that SIGKILL cannot end). Its last line says which; the pod is replaced.
"""
AGENT_EXITS = range(80, 90)
"""Codes that agents keep to themselves: they say nothing of the user's code. Without an agent they are the script's."""

# --- Exit codes of the command line -----------------------------------------------------------------------------------
CLI_OK = 0
"""Done."""
CLI_ERROR = 1
"""The operation could not be carried out."""
CLI_USAGE = 2
"""The command line or the file is wrong."""
CLI_NOT_FOUND = 3
"""There is no such job, or no such checkpoint."""
CLI_NO_ACCESS = 4
"""No cluster answers, or it does not let this user in."""
CLI_JOB_FAILED = 10
"""The job itself failed."""
CLI_STOPPED = 11
"""The job was cancelled or deleted while it was waited for."""
CLI_TIMEOUT = 12
"""The time-out passed before what was waited for came."""
CLI_INTERRUPTED = 130
"""Stopped by Ctrl-C."""

# --- Instructions: coordinator -> agent -------------------------------------------------------------------------------
DO_WAIT = "wait"
"""Nothing to do yet; keep what runs running."""
DO_RUN = "run"
"""Be a member of this attempt; an older attempt's ranks are stopped first."""
DO_HOLD = "hold"
"""Stop the ranks after `grace_s`; keep the pod, the staging and the uploads."""
DO_CHECK = "check"
"""Start nothing: look whether storage holds this run's end record, and say so (`checked`)."""
DO_EXIT = "exit"
"""Stop the ranks, finish the uploads, end with `exit_code`."""

# --- States in an agent's report --------------------------------------------------------------------------------------
RANK_STARTING = "starting"
RANK_RUNNING = "running"
RANK_ENDED = "ended"

# Kinds of a rank's end, RankReport["kind"].
END_OK = "ok"
END_EXIT = "exit"
"""Exit code other than 0, without an exception that the library saw."""
END_SIGNAL = "signal"
"""Killed; behind a shell that continued and ended with 0 no number of a signal is known, and `error` says so."""
END_OOM = "oom"
"""The kernel killed it for its memory, by the counters of the container's memory cgroup; `error` names the limit."""
END_EXCEPTION = "exception"
"""A Python exception that the library reported; `error` carries it."""
END_START = "start"
"""The command cannot run at all (no such script, syntax error, wrong Python): retrying cannot help."""
END_EARLY = "early"
"""Exit code 0, and yet no success: another rank waited for it, and was refused."""
END_DAMAGED = "damaged"
"""The checkpoint that this attempt resumed from turned out damaged: not counted, the next join chooses afresh."""
END_STOPPED = "stopped"
"""Ended by the agent itself on an instruction, or as a victim after another rank's end."""
END_LOST = "lost"
"""The agent restarted and no longer knows how the rank ended (ContainerRestarted)."""
END_STORAGE = "storage"
"""The job's storage cannot be used (unreadable, read-only, no run could be claimed)."""
END_FULL = "full"
"""It raised the error of a report() whose checkpoint found no room in the staging volume."""
END_NOT_SHARED = "not_shared"
"""The storage path is another folder on some workers: no checkpoint could ever be committed, starting again cannot
help.
"""
END_INTERNAL = "internal"
"""The agent could not continue with the attempt: a fault of its own, or of what its container gives it."""

# Kinds of a rank's call that all ranks make together, in `collective` messages.
KIND_REPORT = "report"
KIND_BARRIER = "barrier"
KIND_BROADCAST = "broadcast"
KINDS = (KIND_REPORT, KIND_BARRIER, KIND_BROADCAST)

# Operations on the rank's socket (see wire.py for the framing).
OP_HELLO = "hello"
OP_COLLECTIVE = "collective"
OP_RELEASED = "released"
OP_FAILED = "failed"
OP_LOG = "log"
OP_BEGUN = "begun"
OP_PACED = "paced"
OP_ERROR = "error"
OP_LEAVING = "leaving"
"""The script has ended: `code`, where it is known; `threads` that are no daemons, and `children`, may keep the
process.
"""
OP_FAREWELL = "farewell"
"""The process ends of its own accord: `code`, where it is known. Who closes without it was killed, or became
another.
"""
OP_RESTORE = "restore"
OP_RESTORED = "restored"
OP_FETCH = "fetch"
OP_FETCHED = "fetched"
OP_REPORTED = "reported"
OP_VALIDATED = "validated"
OP_REPORTED_ARE = "reported_are"
OP_ASK_STATE = "ask_state"
OP_REPEATED = "repeated"
OP_STATE = "state"

# `failed` replies: FailedReply["reason"].
FAIL_RANK_GONE = "rank_gone"
FAIL_MISMATCH = "mismatch"
FAIL_TIMEOUT = "timeout"
FAIL_STAGING = "staging"
FAIL_FULL = "full"
"""There is no room to stage the checkpoint."""
FAIL_DAMAGED = "damaged"
FAIL_STORAGE = "storage"

LOST_PEER_TEXT = (
    r"Connection closed by peer|Connection reset by peer|gloo.*(Broken pipe|Connection refused|timed? "
    r"?out)|Application timeout caused pair closure|"
    r"Timed out waiting \d+ ?ms for (recv|send)|Socket Timeout|client socket has (timed out|failed to "
    r"connect)|failed to recv, got 0 bytes|"
    r"NCCL (communicator was "
    r"aborted|error)|ncclUnhandledCudaError|ncclSystemError|ncclRemoteError|ncclInternalError|unhandled system error|"
    r"Watchdog caught collective operation timeout|wait timeout after \d+ ?ms|[Tt]imed out after \d+ seconds waiting "
    r"for clients|"
    r"failed to pass monitoredBarrier|TCPStore.*(timed? ?out|closed|reset)|Store.*timed? ?out|"
    r"Collective ops is aborted by: |"  # TensorFlow
    r"\[(allgather|allreduce|broadcast|comm|loop|socket)\.(cc|h):\d+|"  # XGBoost
    r"Socket (recv|send) error"  # LightGBM
)
"""A pattern (dots match line ends): what the back-ends say when a peer or the store went away."""

# --- Acknowledgement levels and upload modes --------------------------------------------------------------------------
STAGED = "STAGED"
DURABLE = "DURABLE"
UPLOAD_ASYNC = "ASYNC"
UPLOAD_SYNC = "SYNC"
UPLOAD_NONE = "NO_UPLOAD"
UPLOAD_MODES = (UPLOAD_ASYNC, UPLOAD_SYNC, UPLOAD_NONE)
PREFORK_AUTO: Final = "auto"
"""Of AgentSpec.prefork: ranks are forks of a parent that has imported torch, on CPUs and NVIDIA GPUs."""
PREFORK_ALWAYS = "Always"
PREFORK_NEVER = "Never"
PREFORK_DEFAULT: Literal["auto", "Always", "Never"] = "auto"
"""Of a spec, an agent or a trainer that does not say."""
WORKER_MODULE = "trainjob.launch.worker"
"""`python -m` of a rank that runs a function; its one argument is the payload's path."""


class FunctionCode(TypedDict):
    """Of a payload's header, as `code`: what a launcher has read of the function's source, which agents do not have."""

    doubt: Optional[str]
    """Why its ranks had better be no forks; None: they may be."""
    modules: List[str]
    """What may be imported ahead."""
    sets_variables: bool
    """It changes its environment, or may."""
    serves: Optional[str]
    """Why no store is served beside its ranks; None: it may be."""


HANG_RESTART, HANG_REPORT, HANG_OFF = "Restart", "Report", "Off"
"""spec.hang.action."""
HANG_DEFAULT: Literal["Restart", "Report", "Off"] = "Report"
"""Of a spec or a trainer that does not say: a slow job is never ended for being slow."""
TRACKERS = ("csv", "tensorboard", "mlflow", "wandb")
"""What spec.tracking and `--track` name, as KIND or KIND=WHERE."""
TRACKERS_OF_FILES = TRACKERS[:2]
TRACKING_LIMIT, TRACKED_LIMIT = 500, 8
"""Characters of a word of spec.tracking, and how many there may be."""
TRACKING_PATTERN = f"^({'|'.join(TRACKERS)})(=[^\\x00-\\x1f\\x7f]+)?$"
"""Such a word is an argument of a program, and stands in the log as one line."""
TRACKERS_NO_FOLDER = f"^(({'|'.join(TRACKERS_OF_FILES)})=[^/]|mlflow=[.~])"
"""Words that name no folder on a volume: a URI, a home, which nothing between here and there looks up, or a relative
path, which is in the container, and goes with it.
"""
IMPORTED = "imported.json"
"""In a pod's work folder: what its first rank had imported by its first step."""
LEARNED = "learned.json"
"""Beside it: what was imported ahead of that, for an agent that is started anew in the same pod."""
KEEP = "--keep"
"""Given to a rank's boot: it is a warm parent that belongs to no job, and waits for the next (`tj run --keep-warm`)."""
WARM = "--warm"
"""Given to a rank's boot: it is the parent that ranks are forked from. What the command line of such a process has, and
that of no rank.
"""
CONTINUE = "Continue"
"""spec.checkpoint.onUploadFailure: training continues, status says it."""
FAIL = "Fail"
"""spec.checkpoint.onUploadFailure: once a checkpoint cannot reach storage, report() raises on every rank."""

# --- Causes and reasons (status.attempt.endCause, conditions, events; stable API) -------------------------------------
REASON_COMPLETED = "AllRanksSucceeded"
"""Every rank ended with 0 and the uploads are done."""
REASON_USER_ERROR = "UserCodeError"
"""A rank raised an exception; its traceback stands in status.lastFailure."""
REASON_EXIT = "NonZeroExit"
"""A rank ended with an exit code other than 0, without an exception that the library saw."""
REASON_SIGNAL = "KilledBySignal"
"""A signal ended a rank."""
REASON_OOM = "OutOfMemory"
"""The kernel killed a rank or its container because the memory limit was reached."""
REASON_COMMUNICATION = "CommunicationError"
"""Ranks lost each other (gloo, NCCL, store), and no rank has another cause to offer."""
REASON_RANK_ENDED_EARLY = "RankEndedEarly"
"""A rank returned while the others still waited for it."""
REASON_START = "CannotStart"
"""The command cannot run at all (no such script, syntax error, wrong Python): the job fails at once, unless it has
reported before.
"""
REASON_DAMAGED = "CheckpointDamaged"
"""The checkpoint that the attempt resumed from turned out damaged; the one before is used, nothing is counted."""
REASON_STORAGE = "StorageError"
"""The job's storage cannot be used."""
REASON_STAGING_FULL = "StagingFull"
"""A worker's checkpoint found no room in its staging volume, or the kubelet evicted a worker that went over the size
limit of a volume or over its ephemeral storage. The message names the field to raise.
"""
REASON_NOT_SHARED = "StorageNotShared"
"""The storage path is not one folder in all pods (emptyDir, hostPath, a local volume): the job fails at once, the
message names the pods.
"""
REASON_INTERNAL = "AgentFault"
"""A worker's agent could not continue with the attempt: a full work volume, too many open files, no more processes, or
a fault of its own. The message says which.
"""
REASON_POD_LOST = "PodLost"
"""A member's pod is gone."""
REASON_WORKER_UNREACHABLE = "WorkerUnreachable"
"""A worker's agent was silent for 30 s, and its node, its pod's readiness or its peers say too that it is lost: it
is replaced; counts as a preemption.
"""
REASON_PEERS_UNREACHABLE = "PeersUnreachable"
"""Workers cannot reach rank 0's agent, so that the attempt cannot begin: said after 30 s, ended and counted after
120 s. The message names who cannot reach whom; a worker that alone cannot is replaced, away from its node.
"""
REASON_POD_FAILED = "PodFailed"
"""A member's pod ended by itself."""
REASON_START_FAILED = "StartFailed"
"""Pods ended before an attempt could begin."""
REASON_NODE_REFUSED = "NodeRefused"
"""The kubelet of a node did not take a pod that was placed there (`OutOfcpu`, `UnexpectedAdmissionError`,
`NodeShutdown`): nothing of it ran; counts as a preemption, and the next pods keep away from the node.
"""
REASON_INIT_FAILED = "InitContainerFailed"
"""An init container fails; the message names it, how it ended and the command that shows its log."""
REASON_LIMIT = "RestartLimitExceeded"
"""More failures than failurePolicy.maxFailures allows."""
REASON_RULE = "FailRule"
"""A rule of failurePolicy.rules says Fail for this exit code."""
REASON_NO_PROGRESS = "NoProgress"
"""failurePolicy.noProgressAttempts failures in a row without a new report."""
REASON_DEADLINE = "DeadlineExceeded"
"""The job was active for longer than activeDeadlineSeconds."""
REASON_STARTUP_DEADLINE = "StartupDeadlineExceeded"
"""The ranks did not run within startupDeadlineSeconds after all pods were scheduled."""
REASON_SUSPENDED = "Suspended"
"""spec.suspend is true."""
REASON_CANCELLED = "Cancelled"
"""`tj cancel` stopped the job: it is suspended, and marked with the annotation trainjob.dev/cancelled; `tj
resume` takes it back.
"""
REASON_INVALID_SPEC = "InvalidSpec"
"""The spec cannot run; the condition's message names each field and what would be right."""
REASON_SCALED = "Scaled"
"""The number of workers changed."""
REASON_RESIZED = "Resized"
"""An elastic job continues with more workers, which are up now; nothing is counted."""
REASON_GAVE_WAY = "GaveWay"
"""An elastic job continues with fewer workers, so that another job of its namespace can start; nothing is counted."""
REASON_PREEMPTED = "Preempted"
"""The pod was disrupted (DisruptionTarget, or its node is cordoned, tainted or shut down): replaced, counted in
status.failures.preemptions alone.
"""
REASON_PREEMPTION_LIMIT = "PreemptionLimitExceeded"
"""More preemptions than failurePolicy.maxPreemptions allows."""
REASON_RESTART_REQUESTED = "RestartRequested"
"""The annotation trainjob.dev/restart was changed: the ranks start again, nothing is counted."""
REASON_INTERRUPTED = "Interrupted"
"""A worker stopped its ranks on a word that no longer held (a change of the leading operator); not counted."""
REASON_HANG = "Hang"
"""No step came for longer than spec.hang says, or a rank's process is stopped (SIGSTOP): the message says who waits and
at which rank to look. It ends the attempt, counted, with hang.action Restart alone.
"""
REASON_STRAGGLER = "Straggler"
"""Some ranks keep the others waiting in each step: the message says which, on which node, and what they do meanwhile.
Training continues. With hang.replaceStragglers it also ends an attempt at a checkpoint, not counted, and the worker is
replaced.
"""
REASON_CONTAINER_RESTARTED = "ContainerRestarted"
"""The trainer container was started again, and how its ranks ended is not known."""

# Why an attempt began, where it is not the cause that ended the one before.
REASON_STARTED = "Started"
"""The first attempt of the job."""
REASON_RESUMED = "Resumed"
"""The job continued after it was suspended."""
REASON_SPEC_CHANGED = "SpecChanged"
"""The spec was edited: the next start has new pods for all workers."""

# Further reasons of conditions.
REASON_NOT_SUSPENDED = "NotSuspended"
"""spec.suspend is false."""
REASON_CREATED = "Created"
"""The Service and all pods exist."""
REASON_CREATING = "Creating"
"""The Service or some pods are still to be created."""
REASON_SERVICE_CONFLICT = "ServiceConflict"
"""A Service of the job's name exists and belongs to something else: rename one of them."""
REASON_SERVICE_RESTORED = "ServiceRestored"
"""An event: somebody changed or deleted the job's Service, by which its workers find each other; it is put right."""
REASON_SERVED_ELSEWHERE = "ServedElsewhere"
"""An event: another installation of the operator serves this namespace; the one that says so leaves the job alone."""
REASON_AUTHORITY_LOST = "AuthorityLost"
"""Degraded, and an event: the coordinator's CA was lost and made anew; pods that trust the old one are replaced at the
next start.
"""
REASON_SCHEDULED = "Scheduled"
"""Every pod has a node."""
REASON_UNSCHEDULED = "WaitingForNodes"
"""Some pods have no node yet; the message has the scheduler's words."""
REASON_UNSCHEDULABLE = "Unschedulable"
"""The scheduler finds no node for some pods; the message has its words."""
REASON_GATED = "SchedulingGated"
"""Some pods are held back from scheduling by a gate (a queue)."""
REASON_GANG = "WaitingForGang"
"""Only a part of the workers found a node: the pods were given back, the next try comes at
status.timing.gangRetryAt.
"""
REASON_QUOTA = "QuotaExceeded"
"""A quota refuses new pods; the message has the API server's words."""
REASON_FORBIDDEN = "Forbidden"
"""Admission or missing rights refuse new pods or the Service; the message has the API server's words."""
REASON_CREATE_FAILING = "CreateFailing"
"""New pods or the Service cannot be created now: the API server, or a webhook that it asks, answers with an error or
not at all; the message has its words. It is tried again.
"""
REASON_IMAGE_PULL = "ImagePullFailed"
"""An image cannot be pulled; the message has the kubelet's words."""
REASON_VOLUME_MOUNT = "VolumeMountFailed"
"""A volume cannot be attached or mounted; the message has the kubelet's words."""
REASON_CONTAINER_CONFIG = "ContainerConfigError"
"""A Secret or ConfigMap that a container needs is not there, or another part of its configuration is wrong."""
REASON_CONTAINER_START = "ContainerStartFailed"
"""A container or its sandbox cannot be started; the message has the kubelet's words."""
REASON_CRASH_LOOP = "CrashLoop"
"""A container ends again and again; the message tells its last end."""
REASON_BAD_NODE = "BadNode"
"""An event: new pods keep away from nodes, if there are others, on which ranks of different jobs of the namespace broke
or were slow within the last hour; the message names them.
"""
REASON_READY = "AllWorkersReady"
"""The agent (plain mode: the container) of every worker is up."""
REASON_NOT_READY = "WaitingForWorkers"
"""Some workers are not up yet."""
REASON_RUNNING = "RanksRunning"
"""The ranks of the attempt run."""
REASON_STARTING = "RanksStarting"
"""An attempt is about to begin, or its ranks are being started."""
REASON_BACK_OFF = "BackOff"
"""The job ended early several times in a row; the next attempt waits until status.timing.retryAt."""
REASON_HEALTHY = "Healthy"
"""Nothing is wrong."""
REASON_WARNING = "AgentWarning"
"""An agent reports trouble that does not stop training (the history cannot be written); the message has its words."""
REASON_CHECKPOINT_FAILING = "CheckpointFailing"
"""Checkpoints do not reach storage, for now or for good; training continues, the message says why."""
REASON_UNREACHABLE = "CoordinatorUnreachable"
"""No agent is heard while pods run: training continues, nothing is acted upon."""
REASON_BELOW_TARGET = "BelowTarget"
"""An elastic job trains with fewer workers than spec.workers; the message says why the others are missing."""
REASON_SPARES_READY = "AllSparesReady"
"""All spare workers that spec.runtime.spareWorkers wishes could take a place now."""
REASON_SPARES_COMING = "WaitingForSpares"
"""Some spare workers are not ready yet."""
REASON_SPARE_TAKEN = "SpareTookOver"
"""An event: a spare worker is a member from this attempt on."""
REASON_AT_TARGET = "AtTarget"
"""An elastic job trains with as many workers as spec.workers, or does not train now."""
REASON_CHECKING = "CheckingCompletion"
"""All workers vanished without a word when the budget was used up, or when the next ones are to have no agents: the job
fails, or these begin, unless a fresh worker finds that training had completed.
"""
REASON_NOT_FINISHED = "NotFinished"
"""The job is neither complete nor failed."""
REASON_FINISHED = "Finished"
"""The job is complete or failed."""


class AgentSpec(TypedDict, total=False):
    """What the agent acts on; the operator writes it into ENV_AGENT_SPEC as JSON."""

    processes_per_worker: int
    rendezvous_port: int
    storage: Optional[str]
    """The job's own folder: `<checkpoint.storage>/<namespace>/<job>`; None: staging is all there is."""
    resume_from: str
    """auto | none | the path or URI of a checkpoint folder."""
    keep: Optional[int]
    score_attribute: Optional[str]
    score_order: str
    """max | min"""
    strict: bool
    """Two ranks that give different bytes under one name: report() fails instead of a warning."""
    on_upload_failure: str
    """CONTINUE | FAIL"""
    workers: int
    """As the spec says it when the pod is made; how many an attempt has is the instruction's to say."""
    prefork: str
    """PREFORK_AUTO | PREFORK_ALWAYS | PREFORK_NEVER"""
    preload: Optional[List[str]]
    """Modules that the warm parent imports; None: what a script needs that imports torch."""
    recycle: bool
    """Files of a former checkpoint may stay for the next one: nothing but the volume itself bounds what is on it."""


LOADER_KILLED = "DataLoader"
"""The type of a RankError that tells of a signal which ended a process of the rank's data loader, not the rank."""
REFUSED_ARGUMENTS = 2
"""The exit code of a script whose arguments argparse, click and their like refuse."""

ORIGIN_DAMAGED = "turned out damaged when it was restored"
"""Said of a checkpoint that resumeFrom names: every attempt would find it so."""
JOBS_OF_RANKS = "would start a job of its own"
"""Said where ranks call fit(): each would, in every attempt."""
CHECKPOINT_BEFORE = "Name the one before it, {}, or none."
"""Said behind that, where there is a good one."""


class RankError(TypedDict, total=False):
    """An exception as the rank reported it."""

    type: str
    message: str
    traceback: str
    """User frames first, library frames left out."""
    communication: bool
    """The exception speaks of a lost peer (gloo, NCCL, store, barrier): never a first cause by itself."""


class RankReport(TypedDict, total=False):
    """One rank of the agent's current attempt."""

    rank: int
    local_rank: int
    pid: int
    state: str
    kind: str
    exit_code: Optional[int]
    signal: Optional[int]
    raised_at: Optional[float]
    """When it told what ends it: its exception, or an exit code other than 0 of its script. By that clock too; from
    then on, also while clean-up keeps its process.
    """
    ended_at: Optional[float]
    """Seconds since the epoch by the agent's clock."""
    error: Optional[RankError]


class NonFiniteReport(TypedDict):
    """A metric that became NaN or infinite in this attempt: the first one."""

    metric: str
    value: str
    """NaN, Infinity or -Infinity."""
    step: Optional[int]
    position: int
    """Reports before it along the lineage, for scripts that name no steps."""
    count: int
    """Reports and log rows with such a value so far."""


class ProgressReport(TypedDict, total=False):
    """The job's progress as rank 0's agent knows it."""

    position: int
    """Reports along the lineage: those of the checkpoint that was resumed plus those of this attempt."""
    step: Optional[int]
    total_steps: Optional[int]
    epoch: Optional[int]
    metrics: Dict[str, float]
    time: float
    """Of the last report() or log(), seconds since the epoch by the agent's clock."""
    seconds_per_step: Optional[float]
    """Over the last minute of this attempt; None: fewer than two steps were told of."""
    non_finite: Optional[NonFiniteReport]


class CheckpointReport(TypedDict, total=False):
    """What is shown of the checkpoints; nothing is decided from it."""

    id: str
    step: Optional[int]
    uri: Optional[str]
    time: float
    bytes: int
    metrics: Dict[str, float]


class BeginReport(TypedDict, total=False):
    """How an attempt began on one agent. All of it by one clock of that machine, which nobody sets; a part that is not
    over is absent.
    """

    told: float
    """When it heard `run`, seconds since the epoch by the agent's clock."""
    stopped: int
    """Milliseconds later its ranks of the attempt before were gone."""
    joined: int
    """Rank 0's agent had answered the join."""
    forked: int
    """Its ranks were started."""
    group: int
    """Its ranks had a process group, as far as the library sees it: by `init_process_group()`, or the next call after
    the script's own.
    """
    restored: int
    """Its ranks had asked for the checkpoint and read it."""
    first_step: int
    """A rank called report() or log() for the first time."""


class EffortReport(TypedDict, total=False):
    """What rank 0's agent knows of the attempt's work, in milliseconds."""

    saved: Optional[int]
    """After `begin.told`: when the newest checkpoint was released by report(); None: there is none."""
    checkpoint: int
    """For how long all ranks waited in report() for a checkpoint, so far."""
    stalled: int
    """For how long no step came beyond the usual, so far."""
    idle: int
    """What of `checkpoint` and `stalled` came after `saved`: no work that could be lost. None told: 0."""


class ForksReport(TypedDict, total=False):
    """How an agent started its ranks of the attempt."""

    ranks: int
    """As forks of its warm parent."""
    why: Optional[str]
    """Why the others started in new interpreters; None: there are none."""
    learned: List[str]
    """Packages that the next start will not import again, beyond those that were imported ahead at first."""
    modules: str
    """What was imported for that, for agents that were in no attempt yet: names with commas between them, at most
    MODULES_LIMIT characters.
    """


class HangReport(TypedDict):
    """Ranks that hang, so long as they do."""

    since: float
    """The last step, or the stop; seconds since the epoch by the agent's clock."""
    ranks: List[int]
    """At which to look; empty: at none more than at others."""
    message: str
    """For people: who waits where, since when."""
    stacks: str
    """Where all ranks stand, those that stand together in one; empty: nobody was asked."""
    early: bool
    """Before the limit: it is told, and nothing is done for it."""


class StragglerReport(TypedDict):
    """A rank that the others wait for; shares of its time, 0 to 1."""

    rank: int
    behind: float
    """What the others wait for it, of each step."""
    data: float
    compute: float
    held: float
    """It had work and was kept from it: no free processor, stopped, a disk."""
    wait: float


class StragglersReport(TypedDict):
    """Ranks that keep the others waiting, so long as they do; the shares as they were when that was found."""

    since: float
    """When it was found, seconds since the epoch by the agent's clock."""
    message: str
    ranks: List[StragglerReport]


class StacksReport(TypedDict):
    """The answer to a person who asked where the ranks are, until the operator has it."""

    request: str
    """The question, as `Instruction.stacks` names it."""
    stacks: str
    """Where all ranks are, those that are together in one."""


class AgentReport(TypedDict, total=False):
    """Body of `POST /v1/sync`: everything the agent observes, whole each time."""

    namespace: str
    job: str
    job_uid: str
    slot: int
    pod: str
    pod_uid: str
    boot: int
    """Counts the agent's starts in this pod, from 1."""
    seq: int
    """Counts the requests of this boot; a lower one than the last seen is ignored."""
    clock: float
    """The agent's wall clock when it sent this."""
    address: str
    """host:port where peers reach this agent."""
    acknowledged: Optional[Dict[str, Any]]
    """The instruction that the agent last took in; the coordinator answers at once when its own differs."""
    attempt: int
    """The attempt that `ranks` belong to; 0: none yet."""
    quiet: bool
    """No rank process is alive here."""
    joined: bool
    """The attempt's join has been answered, ranks were or are being started."""
    ranks: List[RankReport]
    begin: Optional[BeginReport]
    """How the attempt began here."""
    forks: Optional[ForksReport]
    hang: Optional[HangReport]
    """Of rank 0's agent: the job hangs; of any: a rank's process here is stopped."""
    stragglers: Optional[StragglersReport]
    """Of rank 0's agent."""
    stacks: Optional[StacksReport]
    """Of rank 0's agent: the answer to who asked where the ranks are."""
    lost_peers: List[int]
    """Indices of members whose agent cannot be reached. In a join rank 0's agent names those that have not come."""
    unreached_s: float
    """For how long one of them has not been reached, the longest of them; 0: there are none."""
    boundary: Optional[str]
    """The wish for a boundary that is reached: all ranks wait in report() behind a saved checkpoint; from the agent of
    rank 0 alone.
    """
    draining: bool
    """SIGTERM arrived: this pod is going away."""
    last: bool
    """The agent ends, and says nothing after this."""
    warming: bool
    """What ranks are to be forks of is still being made here; absent: no. Who waits as a spare is counted on once it is
    there.
    """
    uploads: int
    """Checkpoint shares that are staged here and not yet stored."""
    completed: bool
    """This run's end record is written (or was found): the job is Complete."""
    checked: Optional[int]
    """The attempt after whose end this agent has looked for the end record; `completed` says whether it is there."""
    run: Optional[int]
    resumed_from: Optional[str]
    progress: Optional[ProgressReport]
    """From the agent of rank 0 alone; like the checkpoints, of a complete run from whoever knows it."""
    effort: Optional[EffortReport]
    latest: Optional[CheckpointReport]
    best: Optional[CheckpointReport]
    checkpoint_count: int
    warning: Optional[str]
    """Trouble that does not stop training (the history cannot be written)."""
    checkpoint_trouble: Optional[str]
    """Why checkpoints do not reach storage; from the agent of rank 0 alone."""


class Instruction(TypedDict, total=False):
    """Reply to a sync: what the agent is to do, whole each time."""

    do: str
    attempt: int
    index: int
    """Position of this worker among the attempt's members; its ranks are index * processes + local rank."""
    workers: int
    processes: int
    leader: str
    """host:port of the agent of rank 0."""
    secret: str
    """Of this job's attempt: agents prove to each other that they know it, and never send it."""
    boundary: str
    """To rank 0's agent, with `run`: a planned change waits for the next checkpoint; names this wish."""
    leaving: Dict[str, int]
    """With `boundary`: the workers that are to go, by the names of their pods; their positions among the members. Of
    very many the first LEAVING_LIMIT.
    """
    gone_at: float
    """With `leaving`: when the first of them is gone, in seconds since the epoch; absent: nobody knows."""
    hang_after_s: float
    """To rank 0's agent, with `run`: without a step for so long the job hangs; 0: never; absent: that is learned."""
    stacks: str
    """To rank 0's agent, with `run`: somebody asks where the ranks are; names this question."""
    tracking: List[str]
    """To rank 0's agent, with `run`: the trackers that it feeds, KIND or KIND=WHERE; absent: none."""
    reached: int
    """To rank 0's agent, with `run`: the position that attempts before this one came to. The first report beyond it is
    told at once, whatever the pace: what a failure costs depends on it.
    """
    spare_memory: bool
    """With `run`, true: an attempt of this job ended for lack of memory. With PREFORK_AUTO ranks are no forks then."""
    learned: str
    """With `hold`, to a worker that was in no attempt yet (a spare, a replacement): what the others have learned to
    import ahead, as their `ForksReport.modules` has it. Absent: nothing.
    """
    drain_s: float
    """To an agent that was told to end, with `run`: so long after SIGTERM its ranks may train on to a checkpoint."""
    gone_s: float
    """With `drain_s`: so long after SIGTERM its container is killed."""
    grace_s: float
    exit_code: int
    reason: str


class SyncReply(TypedDict):
    """Reply of `POST /v1/sync`."""

    transition: int
    """Counts changes of the leading operator; a reply with a lower one is ignored."""
    instruction: Instruction
    pace_s: float
    """Mere progress is wanted at most once in so many seconds: the more jobs the operator serves, the longer. An agent
    that is not told waits one."""

"""Where the checkpoints that a command is about lie: on this machine, on a cluster's storage, or at a path or URI.

For `tj checkpoints` and `tj model`. A name is one of this machine's jobs, unless an option names a cluster; the job
need not be alive, and by its folder's path or URI its object need not be there. What the cluster's storage needs is
`cluster_storage.py`.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from trainjob.checkpoint.choice import inventory
from trainjob.checkpoint.errors import StoreError
from trainjob.checkpoint.publishing.retention import Policy
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.stores.opening import open_store
from trainjob.checkpoint.stores.store import Store
from trainjob.cli.argument_types import job_name
from trainjob.cli.cluster import cluster_storage, connect
from trainjob.cli.errors import CommandError
from trainjob.cli.local import find as local
from trainjob.launch import job as jobs
from trainjob.launch.cluster import bucket, jobs_api
from trainjob.launch.local import lock
from trainjob.screen.wording import nearest
from trainjob_api.contract import CLI_NOT_FOUND, CLI_USAGE, KIND, PLURAL

QUICK_S = 8.0
"""How long an object store is tried before a person is told that it does not answer; transfers are tried as long as
a job's.
"""
_KINDS = ("tj", KIND.lower(), PLURAL)


@dataclass(frozen=True)
class Place:
    """A job's folder, or that of one checkpoint alone."""

    store: Store
    """For what is small."""
    patient: Store
    """For contents."""
    words: str
    """How later commands name it: `digits -n team`, `./checkpoints/default/digits`."""
    title: str
    """For sentences: the job's name, or the folder."""
    single: CheckpointId | None = None
    """The argument named this checkpoint."""
    alone: bool = False
    """The folder is a checkpoint outside of any job's folder."""
    policy: Policy = field(default_factory=Policy)
    """By what its checkpoints are scored, where the job's object says so."""
    phase: str = ""
    """The state of the job's object; empty where there is none to ask."""
    over: bool | None = None
    """Whether the job is over, suspended ones not being; None: nothing here can tell."""
    resumed: CheckpointId | None = None
    """What the running attempt started from, by the object's status."""
    cluster: cluster_storage.Settings | None = None
    """For a job on a cluster."""
    environ: Mapping[str, str] | None = None
    """By which its bucket was opened, where that is not this process's environment."""

    @property
    def is_name(self) -> bool:
        """`words` is the name of a job of this machine, which `tj run --resume-from` takes too."""
        return self.cluster is None and not is_location(self.words) and not self.words.count(" ")


def find(args: argparse.Namespace) -> Place:
    """The place that the arguments name. Raises CommandError."""
    what: str = args.what
    job, _, last = what.partition("/")
    if (id_ := _identity(last)) and job[:1] not in ("", ".", "~") and not os.path.exists(what):
        # As `tj run --resume-from` takes it.
        return replace(find(argparse.Namespace(**{**vars(args), "what": job})), single=id_)
    elsewhere = args.context or args.kubeconfig or args.cluster
    if is_location(what):
        if args.storage or args.local or args.namespace or elsewhere:
            raise CommandError(
                f"{what} says itself where it is",
                next_step="leave -n, --storage, --local, --cluster, --context and --kubeconfig out",
                code=CLI_USAGE,
            )
        return _at(what)
    if args.local and elsewhere:
        raise CommandError(
            "--local is this machine, --cluster, --context and --kubeconfig name a cluster",
            next_step="leave one of them out",
            code=CLI_USAGE,
        )
    if args.storage:
        return _named(args, what, args.storage)
    if not elsewhere and not args.namespace:
        record = local.named(what)
        if record.folder is None:
            raise CommandError(
                f"{what} had no storage, and its checkpoints are gone with it",
                next_step=f"`tj logs {what}` shows what its ranks wrote",
                code=CLI_NOT_FOUND,
            )
        if jobs.is_s3(record.folder):
            return replace(_at(record.folder), words=what, title=what)
        local.check_stored(record)
        return _local(record.folder, what, "")
    if args.local:
        return _named(args, what, jobs.DEFAULT_STORAGE)
    return _on_cluster(args, _checked(what))


def is_location(what: str) -> bool:
    """Whether this is a path or URI, and no name. `tj/digits`, as kubectl prints it, is a name."""
    if "://" in what or what.startswith((".", "~", "/")):
        return True
    kind, slash, rest = what.partition("/")
    return bool(slash) and (kind.split(".")[0] not in _KINDS or "/" in rest)


def _named(args: argparse.Namespace, what: str, storage: str) -> Place:
    """A job's folder below a storage path or bucket that is named."""
    namespace = args.namespace or "default"
    flags = (f"--storage {args.storage}" if args.storage else "--local") + (
        f" -n {args.namespace}" if args.namespace else ""
    )
    folder = _folder(storage, namespace, what)
    if jobs.is_s3(folder):
        return replace(_at(folder), words=f"{what} {flags}", title=what)
    if not os.path.isdir(folder):
        around = nearest(jobs.job_name(what), _listed(os.path.dirname(folder)))
        raise CommandError(
            f"there is no job {what} in {os.path.dirname(folder)}"
            + (f"; near it: {', '.join(around)}" if around else ""),
            next_step=f"`ls {os.path.dirname(os.path.dirname(folder))}` shows the namespaces there; --storage names "
            "another folder, -n NAMESPACE alone a cluster's job",
            code=CLI_NOT_FOUND,
        )
    return _local(folder, what, flags)


def _local(folder: str, what: str, flags: str) -> Place:
    store = open_store(folder)
    return Place(
        store,
        store,
        f"{what} {flags}".rstrip(),
        what,
        phase="Running" if lock.held(folder) else "",
        over=not lock.held(folder),
    )


def _folder(storage: str, namespace: str, what: str) -> str:
    """`tj run` makes a name of what it is given in the same way."""
    root = jobs.storage_root(storage)
    return f"{root.rstrip('/')}/{namespace}/{jobs.job_name(what)}"


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _checked(what: str) -> str:
    try:
        return job_name(what)
    except argparse.ArgumentTypeError as error:
        raise CommandError(
            str(error),
            next_step="give a job's name, or a path or s3:// URI of its folder (./NAME for a folder here)",
            code=CLI_USAGE,
        ) from None


# --- A path or URI ----------------------------------------------------------------------------------------------------


def _at(what: str) -> Place:
    foreign = "://" in what.removeprefix("file://") and not jobs.is_s3(what)
    root = what if foreign else jobs.storage_root(what)  # the store says which schemes there are
    parent, _, last = root.rpartition("/")
    if last == layout.CHECKPOINTS:
        root, parent, last = parent, *parent.rpartition("/")[::2]
    job_folder, _, between = parent.rpartition("/")
    single = _identity(last)
    with troubles():
        if single is not None and between == layout.CHECKPOINTS:
            return _opened(job_folder, what, single)
        found = dict(open_store(root, QUICK_S).names(""))
        if layout.CHECKPOINTS in found or layout.RUNS in found:
            return _opened(root, what, None)
        if layout.RESERVED in found:
            return _alone(root, what)
    if not found:
        raise CommandError(f"there is nothing at {root}", next_step=_where_jobs_are(root), code=CLI_NOT_FOUND)
    inside = ", ".join([f"{name}/" if is_folder else name for name, is_folder in sorted(found.items())][:5])
    raise CommandError(
        f"{root} is neither a job's folder nor a checkpoint; it holds {inside}",
        next_step=_where_jobs_are(root),
        code=CLI_NOT_FOUND,
    )


def _opened(folder: str, what: str, single: CheckpointId | None) -> Place:
    held = not jobs.is_s3(folder) and lock.held(folder)
    return Place(
        open_store(folder, QUICK_S),
        open_store(folder),
        what,
        what,
        single=single,
        phase="Running" if held else "",
        over=False if held else None,
    )


def _alone(folder: str, what: str) -> Place:
    store = open_store(folder, QUICK_S)
    text = store.read(f"{layout.RESERVED}/{layout.MANIFEST}")
    from trainjob.checkpoint.records.manifest import Manifest

    try:
        id_ = Manifest.loads(text or b"").id
    except ValueError as error:
        raise CommandError(
            f"{store.uri(layout.RESERVED)}/{layout.MANIFEST} is "
            f"{'damaged: ' + str(error) if text else 'not there: this is no checkpoint that was committed'}",
            next_step="take another checkpoint: `tj checkpoints list` with the job's folder shows them",
        ) from None
    return Place(store, open_store(folder), what, what, single=id_, alone=True)


def _identity(text: str) -> CheckpointId | None:
    try:
        return CheckpointId.parse(text)
    except ValueError:
        return None


def _where_jobs_are(root: str) -> str:
    folder = root if os.path.isdir(root) else os.path.dirname(root)
    listing = ["aws", "s3", "ls", f"{root}/"] if jobs.is_s3(root) else ["ls", folder]
    return (
        "a job's folder is <storage>/<namespace>/<name>, a checkpoint <that>/checkpoints/<id>; "
        f"`{shlex.join(listing)}` shows what is there"
    )


# --- A cluster's job --------------------------------------------------------------------------------------------------


def _on_cluster(args: argparse.Namespace, name: str) -> Place:
    try:
        there = connect.connect(args)
        with connect.refusals():
            manifest = jobs_api.get(there.api, there.namespace, name)
            job = jobs_api.read(manifest)
    except CommandError as error:
        raise CommandError(
            str(error), next_step=f"{error.next_step}; {_without_object(args, name)}", code=error.code
        ) from None
    with connect.refusals():
        settings = cluster_storage.settings(there, manifest, job)
    environ = bucket.environ(job, os.environ)
    attempt, checkpoint = job.status.attempt, job.spec.checkpoint
    running = attempt is not None and attempt.state == "Running"
    return Place(
        open_store(settings.folder, QUICK_S, environ),
        open_store(settings.folder, None, environ),
        f"{name}{there.flags}",
        name,
        policy=Policy(None, checkpoint.score_attribute, checkpoint.score_order),
        phase=job.status.phase or "New",
        over=job.status.finished,
        resumed=_identity(attempt.resumed_from or "") if attempt is not None and running else None,
        cluster=settings,
        environ=environ,
    )


def _without_object(args: argparse.Namespace, name: str) -> str:
    namespace = args.namespace or "NAMESPACE"
    return (
        f"if its object is gone: `tj checkpoints list {name} --storage s3://BUCKET/FOLDER -n {namespace}`, or give "
        "the path of its folder; "
        "a job of `tj run` with --storage: give the same --storage"
    )


# --- Refusals ---------------------------------------------------------------------------------------------------------


class troubles:
    """Makes errors of the command line of what storage refuses."""

    def __init__(self, place: Place | None = None) -> None:
        self._cluster = place.cluster if place is not None else None

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, StoreError):
            raise CommandError(str(error), next_step=cluster_storage.next_step(error, self._cluster)) from None


def policy(place: Place, run: int | None) -> Policy:
    """By what the checkpoints of a run are scored: what the job says, else what its agent noted on storage."""
    if place.policy.score_attribute or place.alone or run is None:
        return place.policy
    return inventory.read_policy(place.store, run)

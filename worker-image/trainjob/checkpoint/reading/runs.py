"""Runs: the lives of a job's name. Each new object claims the next number, and with it what it resumes from.

`runs/<k>.json` is created exclusively and never changed: whatever a leftover process of run k-1 still writes, run k
resumes from what stands there until it has a checkpoint of its own. `runs/<k>.end.json` says that run k completed.
Called by `settle.py`, the storage child and the catalogue.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from trainjob.checkpoint import errors
from trainjob.checkpoint.errors import DamagedError, StoreError
from trainjob.checkpoint.reading import stored
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.records.manifest import Manifest
from trainjob.checkpoint.records.sealed import need, need_count, seal, unseal
from trainjob.checkpoint.stores.opening import open_store
from trainjob.checkpoint.stores.store import Store
from trainjob_api import contract

AUTO = "auto"
NONE = "none"
_TRIES = 64


class Claim(NamedTuple):
    """Who owns a run and what it resumes from."""

    run: int
    job_uid: str
    resumes: Optional[CheckpointId]
    uri: Optional[str]
    """Folder of that checkpoint if resumeFrom named it; None: it is `resumes` in this job's folder."""
    why: str
    nonce: str

    def dumps(self) -> bytes:
        """As it is stored."""
        return seal(dict(self._asdict(), resumes=None if self.resumes is None else str(self.resumes)))

    @classmethod
    def loads(cls, text: bytes) -> Claim:
        """Raises ValueError when `text` is no claim."""
        doc = unseal(text)
        resumes, uri = need(doc, "resumes"), need(doc, "uri")
        if uri is not None and not isinstance(uri, str):
            raise ValueError(f"uri is {uri!r}, expected text or nothing")
        return cls(
            need_count(need(doc, "run"), "run"),
            str(need(doc, "job_uid")),
            None if resumes is None else CheckpointId.parse(resumes),
            uri,
            str(need(doc, "why")),
            str(need(doc, "nonce")),
        )


class Origin(NamedTuple):
    """A checkpoint that a run resumes from, and its folder."""

    manifest: Manifest
    uri: str
    earlier: bool = False
    """The run before left none of its own: it is what that one began with."""


def numbers(store: Store) -> List[int]:
    """The runs that were claimed, oldest first."""
    return sorted(k for k in (layout.parse_run(name) for name, _ in store.names(layout.RUNS)) if k is not None)


def read_claim(store: Store, run: int) -> Optional[Claim]:
    """None when the run was not claimed. Raises DamagedError."""
    key = layout.run_key(run)
    text = store.read(key)
    if text is None:
        return None
    try:
        return Claim.loads(text)
    except ValueError as error:
        raise DamagedError(
            f"{store.uri(key)} is damaged: {error}. Move the file away if run {run} is not needed."
        ) from None


def sees(store: Store, run: int, nonce: str) -> bool:
    """Whether the claim of a run lies here with that nonce."""
    try:
        found = read_claim(store, run)
    except DamagedError:
        return False
    return found is not None and found.nonce == nonce


def begin_attempt(store: Store, run: int, attempt: int) -> None:
    """Before an attempt chooses what it resumes from: from here on retention of an older one, whose agent may not know
    that it is over, takes nothing away. Marks of older ones have done their work.
    """
    store.create(layout.attempt_key(run, attempt), b"{}\n")
    for name, _ in store.names(layout.RUNS):
        mark = layout.parse_attempt(name)
        if mark is not None and mark[0] == run and mark[1] < attempt:
            store.delete(layout.attempt_key(*mark))


def overtaken(store: Store, run: int, attempt: Optional[int] = None) -> bool:
    """Whether another object has taken over this folder, or a newer attempt has begun."""
    names = [name for name, _ in store.names(layout.RUNS)]
    marks = [mark for mark in map(layout.parse_attempt, names) if mark is not None]
    return any((layout.parse_run(name) or 0) > run for name in names) or (
        attempt is not None and any(mark[0] == run and mark[1] > attempt for mark in marks)
    )


def ended(store: Store, run: int) -> bool:
    """Whether the run completed."""
    return store.size(layout.end_key(run)) is not None


def of_job(store: Store, job_uid: str) -> Optional[int]:
    """The newest run that this job has claimed; None: it has claimed none. Claims nothing."""
    for run in reversed(numbers(store)):
        found = read_claim(store, run)
        if found is not None and found.job_uid == job_uid:
            return run
    return None


def write_end(store: Store, run: int, summary: Dict[str, Any]) -> None:
    """The run completed. The first summary stays: written again after a lost reply, nothing changes."""
    store.create(layout.end_key(run), (json.dumps(summary, indent=1) + "\n").encode())


def read_end(store: Store, run: int) -> Optional[Dict[str, Any]]:
    """The summary of a completed run, {} if it is no longer readable; None when the run did not complete."""
    text = store.read(layout.end_key(run))
    if text is None:
        return None
    try:
        doc = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return doc if isinstance(doc, dict) else {}


def claim(store: Store, job_uid: str, resume_from: str, warnings: List[str]) -> Claim:
    """This job's claim: the one that it made before, or the next number. Raises StoreError when resumeFrom cannot be
    met.
    """
    for _ in range(_TRIES):
        runs = numbers(store)
        for run in reversed(runs):
            found = read_claim(store, run)
            if found is not None and found.job_uid == job_uid:
                if run != runs[-1]:
                    warnings.append(
                        f"run {runs[-1]} has begun in {store.uri()} since this job claimed run {run}: two jobs of "
                        "this name use one storage"
                    )
                return found
        mine = _next(store, job_uid, resume_from, runs, warnings)
        if store.create(layout.run_key(mine.run), mine.dumps()):
            return mine
        # The name is taken, by another job or by this very call whose reply was lost. The next round finds our own, or
        # takes the number after it and decides anew what to resume from, as another run has come before.
    raise StoreError(
        errors.UNREADABLE,
        f"no run could be claimed in {store.uri(layout.RUNS)} within {_TRIES} tries: others keep taking the next "
        "number",
    )


def origin(
    store: Store, claimed: Claim, warnings: List[str], environ: Optional[Mapping[str, str]] = None
) -> Optional[Origin]:
    """What a run resumes from as long as it has no checkpoint of its own; None: from the beginning. `environ` as in
    `open_store`, for another folder.

    What turns out damaged is passed over for the one before in its lineage. Only a checkpoint that resumeFrom named has
    no such one: StoreError.
    """
    while True:
        if claimed.uri is not None:
            if store.size(layout.origin_mark_key(claimed.uri)) is not None:
                raise DamagedError(
                    f"resumeFrom: checkpoint {claimed.uri} {contract.ORIGIN_DAMAGED}. {_instead(claimed.uri, environ)}"
                )
            return Origin(named(claimed.uri, environ), claimed.uri)
        if claimed.resumes is None:
            return None
        found = stored.newest_good(store, claimed.resumes.run, warnings, claimed.resumes)
        if found is not None:
            return Origin(found, store.uri(layout.folder(found.id)))
        before = read_claim(store, claimed.resumes.run)
        if before is None or before.run >= claimed.run:
            return None
        claimed = before


def next_start(store: Store) -> Optional[Origin]:
    """What the next run of this name resumes from by itself, were it to begin now; None: from the beginning."""
    found = numbers(store)
    return None if not found or ended(store, found[-1]) else _left_by(store, found[-1], [])


def mark_origin_damaged(store: Store, uri: str, why: str) -> None:
    """Remember in this job's folder that a checkpoint which resumeFrom names did not verify."""
    store.create(layout.origin_mark_key(uri), json.dumps({"uri": uri, "why": why}).encode())


def open_checkpoint(uri: str, environ: Optional[Mapping[str, str]] = None) -> Manifest:
    """The manifest of a checkpoint folder anywhere, its sizes checked. Raises StoreError with a sentence on what is
    wrong with it.
    """
    folder = open_store(uri, environ=environ)
    found = stored.load(folder, "")
    if found is None:
        raise StoreError(errors.INVALID, _no_checkpoint(folder))
    return found


def named(uri: str, environ: Optional[Mapping[str, str]] = None) -> Manifest:
    """The one that resumeFrom names, as `open_checkpoint`; of a damaged one the sentence says which is before it."""
    try:
        return open_checkpoint(uri, environ)
    except DamagedError as error:
        raise DamagedError(f"resumeFrom: {error}. {_instead(uri, environ)}") from error


def _instead(uri: str, environ: Optional[Mapping[str, str]]) -> str:
    before = _before(uri, environ)
    return "Name another one, or none." if before is None else contract.CHECKPOINT_BEFORE.format(before)


def _before(uri: str, environ: Optional[Mapping[str, str]]) -> Optional[str]:
    """The newest good checkpoint before that one, in the same job's folder; None: not that anybody knows."""
    folder, _, name = uri.rpartition(f"/{layout.CHECKPOINTS}/")
    try:
        wanted, store = CheckpointId.parse(name), open_store(folder, environ=environ)
        earlier = [id_ for id_ in stored.ids(store) if id_ < wanted]
        found = next((each for id_ in reversed(earlier) for each in stored.good(store, id_.run, [], id_)), None)
    except (ValueError, StoreError):
        return None
    return None if found is None else store.uri(layout.folder(found.id))


def _next(store: Store, job_uid: str, resume_from: str, runs: List[int], warnings: List[str]) -> Claim:
    run = runs[-1] + 1 if runs else 1
    resumes, uri, why = _resumes(store, resume_from, runs[-1] if runs else None, warnings)
    return Claim(run, job_uid, resumes, uri, why, os.urandom(16).hex())


def _resumes(
    store: Store, resume_from: str, last: Optional[int], warnings: List[str]
) -> Tuple[Optional[CheckpointId], Optional[str], str]:
    if resume_from == NONE:
        return None, None, "resumeFrom is none: the job starts from the beginning"
    if resume_from != AUTO:
        uri = resume_from.rstrip("/") or resume_from
        manifest = named(uri)
        return manifest.id, uri, f"resumeFrom names {uri}{manifest.note.at_step}"
    if last is None:
        return None, None, "no earlier run of this name: the job starts from the beginning"
    if ended(store, last):
        return None, None, f"run {last} completed: the job starts from the beginning"
    start = _left_by(store, last, warnings)
    if start is None:
        return None, None, f"run {last} left no checkpoint: the job starts from the beginning"
    id_, at_step = start.manifest.id, start.manifest.note.at_step
    if not start.earlier:
        return id_, None, f"run {last} did not complete: the job resumes from its checkpoint {id_}{at_step}"
    why = f"run {last} left no checkpoint: the job resumes from {id_}{at_step}, as that run did"
    return id_, None if start.uri == store.uri(layout.folder(id_)) else start.uri, why


def _left_by(store: Store, run: int, warnings: List[str]) -> Optional[Origin]:
    """Of a run that did not complete: its own newest checkpoint, else the one that it began with."""
    found = stored.newest_good(store, run, warnings)
    if found is not None:
        return Origin(found, store.uri(layout.folder(found.id)))
    claimed = read_claim(store, run)
    before = None if claimed is None else origin(store, claimed, warnings)
    return None if before is None else before._replace(earlier=True)


def _near(where: str) -> str:
    """What lies beside a folder of this machine that is not there, and has such a name."""
    from difflib import get_close_matches

    above, name = os.path.split(where)
    try:
        found = get_close_matches(name, os.listdir(above), 3, cutoff=0.5)
    except OSError:
        return ""
    return f" (near it: {', '.join(found)})" if found else ""


def _no_checkpoint(folder: Store) -> str:
    where = folder.uri()
    inside = dict(folder.names(""))
    if not inside:
        return (
            f"resumeFrom: there is no folder {where}, or nothing in it{_near(where)}. Give the path of a checkpoint: "
            "<storage>/<namespace>/<job>/checkpoints/<id>."
        )
    if layout.CHECKPOINTS in inside or layout.RUNS in inside:
        good = [m for run in reversed(numbers(folder)) for m in stored.good(folder, run, [])]
        advice = (
            f"its newest checkpoint is {folder.uri(layout.folder(good[0].id))}: give that path"
            if good
            else "it holds no good checkpoint"
        )
        return f"resumeFrom: {where} is the folder of a job, not of a checkpoint; {advice}."
    return (
        f"resumeFrom: {where} has no {layout.RESERVED}/{layout.MANIFEST}, so it is no checkpoint that trainjob "
        "committed and nothing can say whether it is whole. "
        "To start from other files, load them in the script when get_checkpoint() returns None."
    )

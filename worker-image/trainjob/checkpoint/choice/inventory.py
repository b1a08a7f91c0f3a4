"""What lies in a job's folder on storage: every checkpoint with its state, which is the latest, the best, the one in
use.

The one place that answers this, for `catalogue` (and so for Result), the session's list of reported checkpoints and the
command line, so that they agree. Works without the job alive; writes nothing. Every function may raise StoreError.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from trainjob.checkpoint import errors
from trainjob.checkpoint.errors import DamagedError, StoreError
from trainjob.checkpoint.publishing import retention as retention
from trainjob.checkpoint.publishing.retention import Policy, Scored
from trainjob.checkpoint.reading import runs, stored, validations
from trainjob.checkpoint.reading.runs import Origin
from trainjob.checkpoint.reading.validations import Validation
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.records.manifest import Manifest
from trainjob.checkpoint.stores import transfer
from trainjob.checkpoint.stores.store import Store

GOOD = "good"
DAMAGED = "damaged"
"""Its manifest, a mark or a file's size says so; readers pass it over."""
UNFINISHED = "unfinished"
"""No manifest: its upload goes on, or was given up."""
RETIRED = "retired"
"""Its removal has begun."""


class Entry(NamedTuple):
    """A checkpoint folder."""

    id: CheckpointId
    prefix: str
    """Its key prefix in the store; "" where the store is the folder itself."""
    state: str
    manifest: Optional[Manifest]
    """Of a good one; of a damaged one where it can still be read."""
    why: str = ""
    """Of a damaged one: what is wrong with it."""
    validation: str = ""
    """How its validation stands, if there is one; what it measured is among the manifest's metrics."""

    @property
    def good(self) -> bool:
        """Whether readers take it."""
        return self.state == GOOD


def look(store: Store, run: Optional[int] = None) -> List[Entry]:
    """Every checkpoint folder of a run (None: of all), oldest first. Several are looked at at once: on an object
    store each takes some round trips.
    """
    found: Dict[CheckpointId, Entry] = {}

    def one(id_: CheckpointId) -> None:
        found[id_] = look_at(store, layout.folder(id_), id_)

    ids = stored.ids(store, run)
    transfer.each(ids, one, store.at_once)
    measured: Dict[CheckpointId, Validation] = {}
    for each in sorted({id_.run for id_ in ids}):
        measured.update(validations.read(store, each))
    return [_with(found[id_], measured) for id_ in ids]


def lineage(store: Store, run: int) -> List[Entry]:
    """The checkpoint folders of a run, and of those before it in the same folder from which it goes on, each up to the
    checkpoint that the next one began with; oldest first. Where a claim cannot be read, nothing before it is known.
    """
    bounds = ancestry(store, run)
    return [each for k in sorted(bounds) for each in look(store, k) if within(each.id, bounds)]


Ancestry = Mapping[int, Optional[CheckpointId]]
"""By run the last of its checkpoints that belong to a lineage; None: all do."""


def ancestry(store: Store, run: int) -> Ancestry:
    """A run and those before it from which it goes on."""
    found: Dict[int, Optional[CheckpointId]] = {run: None}
    while True:
        try:
            claim = runs.read_claim(store, run)
        except DamagedError:
            return found
        if claim is None or claim.uri is not None or claim.resumes is None or claim.resumes.run >= run:
            return found
        run = claim.resumes.run
        found[run] = claim.resumes


def within(id_: CheckpointId, lineage: Ancestry) -> bool:
    """Whether a checkpoint belongs to it."""
    if id_.run not in lineage:
        return False
    last = lineage[id_.run]
    return last is None or id_ <= last


def _with(entry: Entry, measured: Mapping[CheckpointId, Validation]) -> Entry:
    if entry.manifest is None or entry.id not in measured:
        return entry
    found, note = measured[entry.id], entry.manifest.note
    note = note._replace(metrics=validations.merged(note.metrics, found))
    return entry._replace(manifest=entry.manifest._replace(note=note), validation=found.status)


def look_at(store: Store, prefix: str, id_: CheckpointId) -> Entry:
    """One checkpoint folder, its files' sizes compared with its manifest."""
    try:
        manifest = stored.load(store, prefix, id_)
    except DamagedError as error:
        return Entry(id_, prefix, DAMAGED, _readable(store, prefix, id_), str(error))
    if manifest is not None:
        return Entry(id_, prefix, GOOD, manifest)
    retired = store.size(stored.join(prefix, f"{layout.RESERVED}/{layout.RETIRED}")) is not None
    return Entry(id_, prefix, RETIRED if retired else UNFINISHED, None)


def latest(entries: Iterable[Entry]) -> Optional[Entry]:
    """The newest good one."""
    return max((entry for entry in entries if entry.good), key=lambda entry: entry.id, default=None)


def best(entries: Iterable[Entry], policy: Policy) -> Optional[Entry]:
    """The good one that retention would call the best; None without a score, or when none has that number."""
    by_id = {entry.id: entry for entry in entries if entry.good}
    found = best_id(
        [Scored(id_, entry.manifest.note.metrics) for id_, entry in by_id.items() if entry.manifest is not None], policy
    )
    return None if found is None else by_id[found]


def best_id(scored: Iterable[Scored], policy: Policy) -> Optional[CheckpointId]:
    """The same of identities and metrics; of equal ones the newest."""
    return retention.plan(list(scored), policy._replace(keep=None)).best


def in_use(store: Store, run: int, entries: Iterable[Entry]) -> Optional[CheckpointId]:
    """The checkpoint that a run's newest attempt started from, as far as storage knows; None: from nothing, from
    another folder, or the run has completed.
    """
    if runs.ended(store, run):
        return None
    found = (layout.parse_history(name) or (0, 0, 0) for name, _ in store.names(layout.HISTORY))
    attempts = sorted({attempt for k, attempt, _ in found if k == run})
    position = _start(store.read(layout.history_key(run, attempts[-1])) or b"") if attempts else None
    own = [entry for entry in entries if entry.good and entry.id.run == run]
    if position is not None:
        fitting = [e.id for e in own if e.manifest is not None and e.manifest.note.position == position]
        if fitting:
            return max(fitting)
    claim = runs.read_claim(store, run)
    return claim.resumes if claim is not None and claim.uri is None and (position is not None or not own) else None


def origin(store: Store, run: int, environ: Optional[Mapping[str, str]] = None) -> Optional[Origin]:
    """What a run resumes from as long as it has no checkpoint of its own; None: from nothing, or from one that is no
    longer good.

    `environ`: that by which the store was opened, where it was not this process's; another folder is opened by it too.
    """
    claim = runs.read_claim(store, run)
    if claim is None:
        return None
    try:
        return runs.origin(store, claim, [], environ)
    except StoreError as error:
        if error.kind in (errors.DAMAGED, errors.INVALID):
            return None
        raise


def read_policy(store: Store, run: int) -> Policy:
    """By what the run's checkpoints are scored, and how many are kept, as its agent noted it; a policy without a score
    when it noted nothing.
    """
    text = store.read(layout.policy_key(run))
    try:
        doc = json.loads(text or b"{}")
        attribute, order, keep = doc.get("score_attribute"), doc.get("score_order"), doc.get("keep")
    except (ValueError, AttributeError):
        return Policy()
    if not attribute:
        return Policy()
    known = keep if isinstance(keep, int) and not isinstance(keep, bool) and keep > 0 else None
    return Policy(known, str(attribute), "min" if order == "min" else "max")


def write_policy(store: Store, run: int, policy: Policy) -> None:
    """Note by what the run's checkpoints are scored: the job's object may be gone when somebody asks for the best."""
    doc = {"score_attribute": policy.score_attribute, "score_order": policy.score_order, "keep": policy.keep}
    store.put(layout.policy_key(run), json.dumps(doc).encode())


def flat(metrics: Mapping[str, Any], prefix: str = "") -> Dict[str, Any]:
    """Nested metrics with dotted names."""
    found: Dict[str, Any] = {}
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            found.update(flat(value, f"{prefix}{name}."))
        else:
            found[f"{prefix}{name}"] = value
    return found


def files(manifest: Manifest) -> List[Tuple[str, int]]:
    """(path, size) of the user's files, sorted; what the library keeps for itself is left out."""
    return sorted((e.path, e.size) for e in manifest.entries if not layout.is_own(e.path))


def _readable(store: Store, prefix: str, id_: CheckpointId) -> Optional[Manifest]:
    try:
        return stored.read_manifest(store, prefix, id_)
    except DamagedError:
        return None


def _start(history: bytes) -> Optional[int]:
    """At which position the attempt of that history resumed, by its first row; None where that does not say."""
    try:
        row = json.loads(history.split(b"\n", 1)[0])
        return int(row["position"]) if row.get("kind") == "start" else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None

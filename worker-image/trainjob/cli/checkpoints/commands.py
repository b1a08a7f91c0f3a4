"""`tj checkpoints list` and `show`: what lies in a job's folder, as tables, for programs, and in readable form."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from trainjob.checkpoint.choice import inventory
from trainjob.checkpoint.choice.inventory import Entry
from trainjob.checkpoint.publishing.retention import Policy, find
from trainjob.cli.checkpoints import places as checkpoint_places
from trainjob.cli.checkpoints import put_elsewhere
from trainjob.cli.checkpoints.choice import Found, find_here, look, nothing
from trainjob.cli.cluster.listing import age
from trainjob.screen import table, wording
from trainjob_api.contract import CLI_OK

if TYPE_CHECKING:
    from trainjob.checkpoint.records.manifest import Manifest

HEADER = ("ID", "STEP", "EPOCH", "METRICS", "SIZE", "FILES", "AGE", "MARKS")
WIDE = ("RANKS", "PARENT", "SAVED", "URI")
SHOWN_METRICS = 3
SHOWN_FILES = 30


def listing(args: argparse.Namespace) -> int:
    """Print the checkpoints."""
    place = checkpoint_places.find(args)
    found = look(place, everything=args.all or place.single is not None)
    entries = [
        e
        for e in found.entries
        if (place.single in (None, e.id)) and (args.all or e.state in (inventory.GOOD, inventory.DAMAGED))
    ]
    if args.output == "json":
        print(
            json.dumps(
                {"storage": place.store.uri(), "run": found.run, "items": [as_json(found, entry) for entry in entries]},
                indent=2,
            )
        )
    elif args.output == "name":
        print(*(entry.id for entry in entries), sep="\n", end="\n" if entries else "")
    elif not entries:
        print(nothing(found))
    else:
        wide = args.output == "wide"
        table.show(
            (*HEADER, *(WIDE if wide else ())), [row(found, entry, wide=wide, now=time.time()) for entry in entries]
        )
    sys.stdout.flush()
    if args.output in (None, "wide"):
        _notes(found, entries, args.all)
    return CLI_OK


def show(args: argparse.Namespace) -> int:
    """Print one."""
    found, (entry, *_) = find_here(args, ["latest"])
    place = put_elsewhere.place_of(found, entry)
    if args.output == "json":
        print(
            json.dumps(
                {
                    **as_json(found, entry),
                    **({} if place is None else {"place": place}),
                    "manifest": _plain(json.loads(entry.manifest.dumps())) if entry.manifest else None,
                },
                indent=2,
            )
        )
        return CLI_OK
    print(*_described(found, entry, place), sep="\n")
    return CLI_OK


# --- Words and rows ---------------------------------------------------------------------------------------------------


def row(found: Found, entry: Entry, *, wide: bool, now: float) -> list[str]:
    """The cells of a checkpoint."""
    marks, manifest = ", ".join(found.marks(entry)), entry.manifest
    if manifest is None:
        return [str(entry.id), *[""] * (len(HEADER) - 2), marks, *(["", "", "", found.uri(entry)] if wide else [])]
    note = manifest.note
    cells = [
        str(entry.id),
        "" if note.step is None else str(note.step),
        "" if note.epoch is None else str(note.epoch),
        metrics(manifest, found.policy, None if wide else SHOWN_METRICS),
        wording.size(manifest.total_bytes),
        str(len(inventory.files(manifest))),
        age(_time(manifest), now),
        marks,
    ]
    return cells + (
        [str(note.world_size), "" if note.parent is None else str(note.parent), _stamp(manifest), found.uri(entry)]
        if wide
        else []
    )


def metrics(manifest: Manifest, policy: Policy, limit: int | None) -> str:
    """`loss=0.31 accuracy=0.98`, the one that is scored first."""
    numbers = {
        name: float(value)
        for name, value in inventory.flat(manifest.note.metrics).items()
        if isinstance(value, int | float)
    }
    score = find(manifest.note.metrics, policy.score_attribute) if policy.score_attribute else None
    ordered = {**({str(policy.score_attribute): score} if score is not None else {}), **numbers}
    shown = [f"{name}={wording.number(value)}" for name, value in list(ordered.items())[:limit]]
    return " ".join(shown) + (" ..." if len(ordered) > len(shown) else "")


def as_json(found: Found, entry: Entry) -> dict[str, Any]:
    """The object of `-o json`; numbers that JSON has not are text."""
    base: dict[str, Any] = {
        "id": str(entry.id),
        "uri": found.uri(entry),
        "state": entry.state,
        "marks": found.marks(entry),
    }
    if entry.why:
        base["why"] = entry.why
    if entry.manifest is None:
        return base
    note = entry.manifest.note
    return {
        **base,
        "step": note.step,
        "epoch": note.epoch,
        "metrics": _plain(dict(note.metrics)),
        "bytes": entry.manifest.total_bytes,
        "files": len(inventory.files(entry.manifest)),
        "time": _stamp(entry.manifest),
        "worldSize": note.world_size,
        "parent": None if note.parent is None else str(note.parent),
    }


def _described(found: Found, entry: Entry, place: str | None) -> list[str]:
    marks = found.marks(entry)
    lines = [
        f"checkpoint {entry.id}" + (f"   {', '.join(marks)}" if marks else ""),
        f"  at          {found.uri(entry)}",
    ]
    if entry.why:
        lines.append(f"  damaged     {entry.why}")
    if entry.manifest is None:
        return [
            *lines,
            "  it has no manifest, so no restart takes it: its upload is under way, or was given up",
        ]
    note, files = entry.manifest.note, inventory.files(entry.manifest)
    step = (
        "none reported"
        if note.step is None
        else str(note.step)
        if note.total_steps is None
        else f"{note.step} of {note.total_steps}"
    )
    lines += [
        f"  step        {step}" + ("" if note.epoch is None else f"   epoch {note.epoch}"),
        f"  saved       {_stamp(entry.manifest)} by {wording.count(note.world_size, 'rank')}, report {note.position}",
        f"  metrics     {metrics(entry.manifest, found.policy, None) or 'none'}",
        f"  based on    {_lineage(found, entry)}",
        *([f"  metadata    {json.dumps(_plain(dict(note.metadata)))}"] if note.metadata else []),
    ]
    if place is not None:
        return [*lines, f"  files       {put_elsewhere.where(place)}"]
    lines.append(f"  files       {len(files)}, {wording.size(entry.manifest.total_bytes)} with the library's own")
    entries = {e.path: e for e in entry.manifest.entries}
    rows = [
        [path, wording.size(size), f"{entries[path].algorithm} {entries[path].checksum}", str(entries[path].rank)]
        for path, size in files[:SHOWN_FILES]
    ]
    lines += [f"    {line}" for line in table.lines(("FILE", "SIZE", "CHECKSUM", "RANK"), rows)] if rows else []
    if len(files) > SHOWN_FILES:
        lines.append(f"    and {len(files) - SHOWN_FILES} more (-o json has them all)")
    return lines


def _lineage(found: Found, entry: Entry) -> str:
    """The chain of parents as far as they are here."""
    chain: list[str] = []
    child, parent = entry.id, entry.manifest.note.parent if entry.manifest is not None else None
    while parent is not None and len(chain) < 5:
        here, where = found.parent(child, parent)
        chain.append(f"{parent}{where}")
        child, parent = parent, here.manifest.note.parent if here is not None and here.manifest is not None else None
    if not chain:
        return "none: training began from nothing"
    return " <- ".join(chain) + (" <- ..." if parent is not None else "")


def _notes(found: Found, entries: Sequence[Entry], everything: bool) -> None:
    """On standard error: what the table does not show."""
    left = len(found.entries) - len(entries) if found.place.single is None else 0
    notes = []
    if found.others:
        notes.append(f"{wording.count(found.others, 'checkpoint')} of other runs: --all")
    if used := ", ".join(str(id_) for id_ in sorted(found.used) if id_.run != found.run):
        notes.append(f"run {found.run} started from {used}")
    if left and not everything:
        notes.append(f"{left} not committed: --all")
    notes += [f"{entry.id} is damaged: {entry.why}" for entry in entries if entry.why]
    for note in notes:
        print(f"tj  | {note}", file=sys.stderr)


def _time(manifest: Manifest) -> datetime | None:
    try:
        return datetime.fromtimestamp(manifest.note.time, UTC)
    except (OverflowError, OSError, ValueError):
        return None


def _stamp(manifest: Manifest) -> str:
    time_ = _time(manifest)
    return "" if time_ is None else time_.isoformat(timespec="seconds").replace("+00:00", "Z")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value

"""The checkpoints of a place with what distinguishes them, and the ones that a command's words name. For `tj
checkpoints` and `tj model`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from trainjob.checkpoint.choice import inventory
from trainjob.checkpoint.choice.inventory import Entry
from trainjob.checkpoint.errors import DamagedError
from trainjob.checkpoint.publishing.retention import Policy
from trainjob.checkpoint.reading import runs, stored, validations
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.cli.checkpoints import places as checkpoint_places
from trainjob.cli.checkpoints.places import Place, troubles
from trainjob.cli.errors import CommandError
from trainjob.screen import wording
from trainjob_api.contract import CLI_NOT_FOUND, CLI_USAGE

STATES = {inventory.DAMAGED: "damaged", inventory.UNFINISHED: "unfinished", inventory.RETIRED: "removing"}
VALIDATIONS = {
    validations.PENDING: "validation open",
    validations.VALIDATED: "validated",
    validations.TIMEOUT: "validation timed out",
    validations.FAILED: "validation failed",
}
"""Of a job that is over, one that is open was never done."""


@dataclass(frozen=True)
class Found:
    """The checkpoints of a place, and what distinguishes some of them."""

    place: Place
    entries: tuple[Entry, ...]
    """Of one run and those that it goes on from, or of all; oldest first."""
    run: int | None
    """The run that is meant: the newest, unless another was asked for."""
    others: int
    """Checkpoint folders of other runs that are left out."""
    policy: Policy
    latest: CheckpointId | None
    best: CheckpointId | None
    used: frozenset[CheckpointId]

    def marks(self, entry: Entry) -> list[str]:
        """In the order of the help."""
        said = (("latest", entry.id == self.latest), ("best", entry.id == self.best), ("in use", entry.id in self.used))
        found = [word for word, holds in said if holds]
        found += [VALIDATIONS[entry.validation]] if entry.validation else []
        return found + ([] if entry.good else [STATES[entry.state]])

    def uri(self, entry: Entry) -> str:
        """Where it lies."""
        return self.place.store.uri(entry.prefix)

    def parent(self, child: CheckpointId, parent: CheckpointId) -> tuple[Entry | None, str]:
        """What a checkpoint is based on, and what is to be said of where that is. It is looked for on storage: a run
        that was told what to start from is in no lineage, so that what it began with may not be among `entries`.
        """
        if self.place.alone:  # no more than that one is known
            return None, ""
        folder, known = layout.folder(parent), {entry.id: entry for entry in self.entries}
        with troubles(self.place):
            if parent.run != child.run or parent not in known:
                claim = _claim(self.place, child.run)
                named = None if claim is None or claim.resumes != parent else claim.uri
                if named is not None and named != self.place.store.uri(folder):
                    return None, f" (from {named})"
            here = known.get(parent) or inventory.look_at(self.place.store, folder, parent)
        return (here, "") if here.manifest is not None else (None, " (no longer here)")


def look(place: Place, *, everything: bool = False, run: int | None = None) -> Found:
    """What is there. Raises CommandError when storage refuses."""
    with troubles(place):
        if place.alone:
            assert place.single is not None
            return Found(
                place, (inventory.look_at(place.store, "", place.single),), None, 0, Policy(), None, None, frozenset()
            )
        ids = stored.ids(place.store)
        newest = max([*runs.numbers(place.store), *(id_.run for id_ in ids)], default=None)
        meant = newest if run is None else run
        lineage = inventory.ancestry(place.store, meant) if meant is not None else {}
        shown = [] if meant is None else inventory.look(place.store) if everything else _of(place, lineage)
        own = [entry for entry in shown if inventory.within(entry.id, lineage)]
        used = _used(place, newest, own) if meant == newest else set()
        latest = inventory.latest(own)
        if latest is None and meant is not None:
            latest = _origin(place, meant)
            if latest is not None and not everything:
                shown = [latest, *shown]
        policy = checkpoint_places.policy(place, meant)
        best = inventory.best(own, policy)
    others = 0 if everything else sum(not inventory.within(id_, lineage) for id_ in ids)
    return Found(place, tuple(shown), meant, others, policy, latest and latest.id, best and best.id, frozenset(used))


def _claim(place: Place, run: int) -> runs.Claim | None:
    try:
        return runs.read_claim(place.store, run)
    except DamagedError:
        return None


def _of(place: Place, lineage: inventory.Ancestry) -> list[Entry]:
    found = [entry for run in sorted(lineage) for entry in inventory.look(place.store, run)]
    return [entry for entry in found if inventory.within(entry.id, lineage)]


def _origin(place: Place, run: int) -> Entry | None:
    """Of a run that has none of its own: the one that it resumes from, as Result has it."""
    found = inventory.origin(place.store, run, place.environ)
    if found is None or found.uri != place.store.uri(layout.folder(found.manifest.id)):
        return None
    return Entry(found.manifest.id, layout.folder(found.manifest.id), inventory.GOOD, found.manifest)


def _used(place: Place, run: int | None, own: Sequence[Entry]) -> set[CheckpointId]:
    """What the newest run's attempt started from; nothing of a job that is over."""
    if run is None or place.over is True:
        return set()
    found = {place.resumed, inventory.in_use(place.store, run, own)}
    return {id_ for id_ in found if id_ is not None}


def choose(found: Found, words: Sequence[str]) -> list[Entry]:
    """The checkpoints that these words name, each once, in their order. Raises CommandError naming the nearest ones."""
    return list({entry.id: entry for entry in (_chosen(found, word) for word in words)}.values())


def wanted(args: argparse.Namespace, place: Place, otherwise: Sequence[str]) -> list[str]:
    """The words that name checkpoints: those given, the one in the path, or `otherwise`."""
    given = list(args.ids)
    if args.at_most is not None and len(given) > args.at_most:
        raise CommandError(f"{' '.join(given)}: one checkpoint at a time", next_step="name one of them", code=CLI_USAGE)
    if place.single is None:
        return given or list(otherwise)
    if given and given != [str(place.single)]:
        raise CommandError(
            f"{args.what} is checkpoint {place.single} already",
            next_step=f"leave {' '.join(given)} out, or give the job's folder",
            code=CLI_USAGE,
        )
    return [str(place.single)]


def find_here(args: argparse.Namespace, otherwise: Sequence[str]) -> tuple[Found, list[Entry]]:
    """What the arguments are about. All runs are looked at when an identity of an earlier one is named."""
    place = checkpoint_places.find(args)
    words = wanted(args, place, otherwise)
    found = look(place, everything=any(word not in ("latest", "best") for word in words))
    return found, choose(found, words)


def _chosen(found: Found, word: str) -> Entry:
    by_id = {str(entry.id): entry for entry in found.entries}
    if word in by_id:
        return by_id[word]
    if word in ("latest", "best"):
        id_ = found.latest if word == "latest" else found.best
        if id_ is not None:
            return by_id[str(id_)]
        if word == "latest" or not by_id:
            raise CommandError(
                nothing(found),
                next_step=f"`tj checkpoints list {found.place.words} --all` shows what is not committed too",
                code=CLI_NOT_FOUND,
            )
        raise CommandError(
            f"nothing says which checkpoint of {found.place.title} is the best: {_no_score(found)}",
            next_step=f"name one (`tj checkpoints list {found.place.words}`), or `tj model get {found.place.words} "
            "--metric M --mode min|max -o DIR`",
            code=CLI_USAGE,
        )
    near = _near(word, [str(e.id) for e in found.entries])
    raise CommandError(
        f"there is no checkpoint {word} in {found.place.store.uri()}"
        + (f"; near it: {', '.join(near)}" if near else ", nor any other"),
        next_step=f"`tj checkpoints list {found.place.words} --all` shows them all",
        code=CLI_NOT_FOUND,
    )


def _near(word: str, known: Sequence[str]) -> list[str]:
    """Neighbours in the order of checkpoints for what is an identity (retention may have taken it), else what is
    spelt alike, else the last ones.
    """
    try:
        asked = CheckpointId.parse(word)
    except ValueError:
        return wording.nearest(word, known) or list(known)[-3:]
    ids = sorted(map(CheckpointId.parse, known))
    older, newer = [i for i in ids if i < asked], [i for i in ids if i > asked]
    return [str(i) for i in older[-2:] + newer[:2]]


def _no_score(found: Found) -> str:
    name = found.policy.score_attribute
    return f"none has a number {name!r}" if name else "its job has no score attribute (spec.checkpoint.scoreAttribute)"


def nothing(found: Found) -> str:
    """That there are none, and where."""
    others = f" of run {found.run}; other runs have {found.others}" if found.others else ""
    return f"there are no checkpoints in {found.place.store.uri()}{others}"

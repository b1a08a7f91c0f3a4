"""Objects in memory with the promises that an API server gives: versions, generations, preconditions, owners, watches.

Used by `memory/cluster.py` alone. Everything is copied on the way in and on the way out, and a stored object is never
changed in place, so that nobody holds a reference into the store. It knows no fault injection and awaits nothing but
changes.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, TypeVar

from trainjob_api import contract
from trainjob_operator.clock import Clock
from trainjob_operator.cluster import Conflict, Manifest, NotFound, Rejected

POD = "Pod"
_ENDED_PHASES = ("Succeeded", "Failed")

T = TypeVar("T")

Address = tuple[str, str, str]
"""(kind, namespace, name)"""


class ChangeType(Enum):
    """What a watch says happened."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


@dataclass(frozen=True)
class ObjectChange:
    """One change: `object` is the manifest after it; for DELETED the last one."""

    type: ChangeType
    kind: str
    object: Manifest


class ChangeFeed:
    """The changes for one watcher, in order, without a gap; ends never."""

    def __init__(self, first: Iterable[ObjectChange]) -> None:
        self._waiting = deque(first)
        self._arrived = asyncio.Event()

    def __len__(self) -> int:
        """Changes that wait."""
        return len(self._waiting)

    def push(self, change: ObjectChange) -> None:
        """Called by the store."""
        self._waiting.append(change)
        self._arrived.set()

    async def next(self) -> ObjectChange:
        """The next change, as the watcher's own copy."""
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
        change = self._waiting.popleft()
        return ObjectChange(change.type, change.kind, copy_json(change.object))


class ObjectStore:
    """Objects by kind, namespace and name."""

    def __init__(self, clock: Clock, new_uid: Callable[[], str] | None = None) -> None:
        self._clock = clock
        self._new_uid = new_uid or (lambda: str(uuid.uuid4()))
        self._objects: dict[Address, Manifest] = {}
        self._feeds: list[ChangeFeed] = []
        self._version = 0

    # --- Reading -----------------------------------------------------------------------------------------------------

    def get(self, kind: str, namespace: str, name: str) -> Manifest:
        """A copy. Raises NotFound."""
        return copy_json(self._find(kind, namespace, name))

    def select(self, kind: str, namespace: str | None = None, label: tuple[str, str] | None = None) -> list[Manifest]:
        """Copies of all objects of a kind, in the order of their names; narrowed to a namespace and one label's
        value.
        """
        return [
            copy_json(found)
            for address, found in sorted(self._objects.items())
            if _selected(address, found, kind, namespace, label)
        ]

    def open_feed(self) -> ChangeFeed:
        """A feed that starts with everything there is."""
        feed = ChangeFeed(ObjectChange(ChangeType.ADDED, address[0], found) for address, found in self._objects.items())
        self._feeds.append(feed)
        return feed

    def close_feed(self, feed: ChangeFeed) -> None:
        """No further change is kept for it."""
        self._feeds = [other for other in self._feeds if other is not feed]

    # --- Writing -----------------------------------------------------------------------------------------------------

    def create(self, kind: str, manifest: Manifest) -> Manifest:
        """Store a new object under the name in its metadata. Raises Conflict when the name is taken, Rejected when
        it has none.
        """
        created = copy_json(manifest)
        metadata = created.setdefault("metadata", {})
        name = metadata.get("name")
        if not name or not isinstance(name, str):
            raise Rejected(f"{kind} without metadata.name")
        address = (kind, metadata.setdefault("namespace", "default"), name)
        if address in self._objects:
            raise Conflict(f"{kind} {address[1]}/{name} already exists")
        metadata.update(uid=self._new_uid(), generation=1, creationTimestamp=self.timestamp())
        metadata.pop("deletionTimestamp", None)
        self._put(address, created, ChangeType.ADDED)
        result = copy_json(created)
        if metadata.get("ownerReferences") and not self._has_living_owner(created):
            # What garbage collection does a little later: a child that was created after its owner went away.
            self.delete(kind, address[1], name)
        return result

    def update(self, kind: str, namespace: str, name: str, change: Callable[[Manifest], None]) -> Manifest:
        """Let `change` edit a copy and store it; a change of nothing makes no new version. Raises NotFound."""
        before = self._find(kind, namespace, name)
        after = copy_json(before)
        change(after)
        after = copy_json(after)
        if after == before:
            return after
        self._put((kind, namespace, name), after, ChangeType.MODIFIED)
        return copy_json(after)

    def delete(self, kind: str, namespace: str, name: str, uid: str | None = None, grace_s: int | None = None) -> None:
        """Delete, with the UID as precondition. A pod on a node stays, marked, until the node's kubelet finalizes it.

        As on an API server, a pod goes at once when it was never bound to a node, has ended, or the grace period is 0.
        """
        found = self._find(kind, namespace, name)
        metadata = found["metadata"]
        if uid is not None and metadata["uid"] != uid:
            raise Conflict(f"precondition failed: {kind} {namespace}/{name} has UID {metadata['uid']}, not {uid}")
        grace = _grace(found, grace_s) if kind == POD else 0
        if grace > 0:
            if grace < metadata.get(
                "deletionGracePeriodSeconds", grace + 1
            ):  # a second delete can only shorten the first
                self.update(kind, namespace, name, lambda pod: mark_deleted(pod, self._clock.now(), grace))
            return
        if kind == POD:
            self.update(kind, namespace, name, lambda pod: mark_deleted(pod, self._clock.now(), 0))
        self.remove(kind, namespace, name)

    def remove(self, kind: str, namespace: str, name: str) -> None:
        """Take the object out and delete what only it owned. Raises NotFound."""
        gone = copy_json(self._find(kind, namespace, name))
        del self._objects[(kind, namespace, name)]
        self._version += 1
        gone["metadata"]["resourceVersion"] = str(self._version)
        self._tell(ObjectChange(ChangeType.DELETED, kind, gone))
        for child in list(self._children_of(gone["metadata"]["uid"])):
            if child in self._objects and not self._has_living_owner(self._objects[child]):
                self.delete(*child)

    def timestamp(self) -> str:
        """Now, as metadata has it."""
        return _text(self._clock.now())

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _find(self, kind: str, namespace: str, name: str) -> Manifest:
        try:
            return self._objects[(kind, namespace, name)]
        except KeyError:
            raise NotFound(f"{kind} {namespace}/{name} not found") from None

    def _put(self, address: Address, manifest: Manifest, type_: ChangeType) -> None:
        self._version += 1
        manifest["metadata"]["resourceVersion"] = str(self._version)
        self._objects[address] = manifest
        self._tell(ObjectChange(type_, address[0], manifest))

    def _tell(self, change: ObjectChange) -> None:
        for feed in self._feeds:
            feed.push(change)

    def _children_of(self, uid: str) -> Iterator[Address]:
        for address, found in self._objects.items():
            if any(owner.get("uid") == uid for owner in found["metadata"].get("ownerReferences", ())):
                yield address

    def _has_living_owner(self, manifest: Manifest) -> bool:
        owners = {owner.get("uid") for owner in manifest["metadata"].get("ownerReferences", ())}
        return any(found["metadata"]["uid"] in owners for found in self._objects.values())


def _selected(
    address: Address, found: Manifest, kind: str, namespace: str | None, label: tuple[str, str] | None
) -> bool:
    if address[0] != kind or (namespace is not None and address[1] != namespace):
        return False
    return label is None or found["metadata"].get("labels", {}).get(label[0]) == label[1]


def _grace(pod: Manifest, wished: int | None) -> int:
    """Seconds that a pod may take to go; 0: it goes at once."""
    spec = pod.get("spec", {})
    if not spec.get("nodeName") or pod.get("status", {}).get("phase") in _ENDED_PHASES:
        return 0
    return int(spec.get("terminationGracePeriodSeconds", contract.DEFAULT_GRACE_S)) if wished is None else wished


def mark_deleted(found: Manifest, now: datetime, grace_s: int) -> None:
    """It is to go, and stays until somebody lets it."""
    found["metadata"]["deletionTimestamp"] = _text(now + timedelta(seconds=grace_s))
    found["metadata"]["deletionGracePeriodSeconds"] = grace_s


def _text(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def merge(document: Manifest, patch: Manifest) -> Manifest:
    """The document after a JSON merge patch (RFC 7386): None removes a field, maps merge, everything else replaces."""
    merged = dict(document)
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, dict):
            inner = merged.get(name)
            merged[name] = merge(inner if isinstance(inner, dict) else {}, value)
        else:
            merged[name] = value
    return merged


def copy_json(value: T) -> T:
    """A deep copy of plain JSON values. Raises Rejected for anything that an API server could not have stored."""
    copied: T = _copy(value)
    return copied


_PLAIN = frozenset({str, int, bool, type(None)})


def _copy(value: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is dict:
        if not all(type(name) is str for name in value):
            raise Rejected(f"not JSON: a field name among {list(value)!r:.80}")
        return {name: item if type(item) in _PLAIN else _copy(item) for name, item in value.items()}
    if kind is list or kind is tuple:
        return [_copy(item) for item in value]
    if kind is float and value - value == 0.0:  # neither infinite nor NaN
        return value
    raise Rejected(f"not JSON: {value!r:.80}")

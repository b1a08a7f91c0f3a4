"""Storage is asked for a person who waits."""

from __future__ import annotations

from pathlib import Path

from trainjob.checkpoint.errors import FULL, StoreError
from trainjob.checkpoint.stores.store import Store
from trainjob.launch.outcome.ask_storage import ask


def test_what_it_says_or_fails_with_is_told(tmp_path: Path) -> None:
    def refused(store: Store) -> bool:
        raise StoreError(FULL, "the disk is full")

    def unforeseen(store: Store) -> bool:
        raise ValueError("nobody thought of this")

    assert ask(str(tmp_path), lambda store: 7) == (7, "")
    assert ask(str(tmp_path), refused) == (None, "the disk is full")
    assert ask(str(tmp_path), unforeseen) == (None, "ValueError: nobody thought of this")

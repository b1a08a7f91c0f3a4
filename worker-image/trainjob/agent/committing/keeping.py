"""Rank 0's agent: which of the run's checkpoints storage keeps, after each commit and each validation.

Made by `commits`, which says what must stay. The rule itself is `checkpoint.publishing.retention`'s, in the storage
child.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, Mapping, Set

from trainjob.agent.background import Background
from trainjob.agent.site import Site
from trainjob.agent.storing.storage import StorageError


class Keeping:
    """One attempt's. `on_their_way`: ids that storage does not have yet; `on_kept`: what it has now, by `retain`'s
    reply; `on_done`: nothing is being removed any more.
    """

    def __init__(
        self,
        site: Site,
        run: int,
        attempt: int,
        protected: Iterable[str],
        on_their_way: Callable[[], List[str]],
        on_kept: Callable[[Mapping[str, Any]], None],
        on_done: Callable[[], None],
    ) -> None:
        self._site = site
        self._run = run
        self._attempt = attempt
        # For the whole attempt: what it resumed from is read lazily, perhaps late.
        self._protected: Set[str] = set(protected)
        self._on_their_way = on_their_way
        self._on_kept = on_kept
        self._on_done = on_done
        self._background = Background(site.on_fault)
        self._at_work = 0
        self._validating: Set[str] = set()
        self._validated: Set[str] = set()
        """Whose validation is over, whatever storage shows: its end may be what could not be written."""
        self._validates = False
        """Checkpoints of this attempt are validated, so that their metrics are not those of their reports alone."""

    @property
    def at_work(self) -> bool:
        """Something may be removed yet."""
        return self._at_work > 0

    @property
    def validated_ones(self) -> List[str]:
        """Ids of those whose validation is over."""
        return sorted(self._validated)

    def validated(self, id_: str, over: bool) -> None:
        """A checkpoint is validated, or (`over`) was: it may be the best now, or one too many."""
        self._validates = True
        if not over:
            self._validated.discard(id_)
            self._validating.add(id_)
            return
        self._validating.discard(id_)
        self._validated.add(id_)
        if self._site.storage is not None:
            self.look()

    def look(self) -> None:
        """Remove what need not stay."""
        self._background.spawn(self._retain())

    def close(self) -> None:
        """Another attempt begins."""
        self._background.cancel()

    async def _retain(self) -> None:
        assert self._site.storage is not None
        spec = self._site.config.spec
        protect = sorted({*self._protected, *self._on_their_way(), *self._validating})
        wanted: Dict[str, Any] = {
            "run": self._run,
            "attempt": self._attempt,
            "protect": protect,
            "keep": spec.keep,
            "score_attribute": spec.score_attribute,
            "score_order": spec.score_order,
        }
        if self._validates:
            wanted["validates"], wanted["over"] = True, self.validated_ones
        self._at_work += 1
        try:
            kept = await self._site.storage.call("retain", wanted)
            self._validated.difference_update(kept.get("deleted") or ())
            self._on_kept(kept)
        except StorageError as error:
            self._site.warn(f"Old checkpoints cannot be removed: {error}")
        finally:
            self._at_work -= 1
        self._on_done()

"""`prepare_data_loader`: a DataLoader for one rank of many, whose position survives with the checkpoint.

Called by user code once per loader. The result is a copy of the user's DataLoader (same class, every argument kept,
those of later torch versions too) whose iteration is ours. `position` holds the rules of epochs and resuming,
`samplers` the order of indices, `transfer` the move to the device, `reproducible` the seeds.
"""

from __future__ import annotations

import sys
import warnings
import weakref
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any, Dict, Iterator, Optional, Type

import torch
from torch.utils.data import DataLoader, IterableDataset

from trainjob.session import calls, link, pace, rank_state
from trainjob.session.arguments import told
from trainjob.torch import reproducible, samplers, transfer
from trainjob.torch.dealing import Dealing
from trainjob.torch.device import get_device
from trainjob.torch.global_batch import GlobalBatch
from trainjob.torch.own_skip import OwnSkip
from trainjob.torch.place import place
from trainjob.torch.position import Pass, Position
from trainjob.torch.seeded import SeededDataset

KIND = "data-loader"


@told
def prepare_data_loader(
    data_loader: DataLoader[Any],
    add_dist_sampler: bool = True,
    move_to_device: bool = True,
    auto_transfer: bool = True,
    *,
    resume: bool = True,
    even_batches: bool = True,
    global_batch: Optional[GlobalBatch] = None,
) -> DataLoader[Any]:
    """A DataLoader that gives this rank its share, moves batches to its device, and resumes where a checkpoint left it.

    `data_loader` itself is left as it is: use what is returned. `add_dist_sampler=False` gives each rank all the data
    (where the loader has a distributed sampler, that sampler's part of it). `move_to_device=False` leaves batches on
    the CPU; `auto_transfer` copies the next batch to the GPU while this one is computed.

    The order of an epoch belongs to its number and to the seed of enable_reproducibility() alone; its samples are
    dealt to the ranks in turn, each exactly once, at any number of ranks, also when that changes inside the epoch. The
    last batches are shorter where it does not divide. `drop_last` leaves out the last step (one batch of each rank) if
    it is not full. Where fewer samples are left than ranks (`batch_size=1`, tiny data), the ranks without one see one
    of those again, so that all have equally many batches; `even_batches=False` gives them none, for validation and
    Join.
    A sampler of your own keeps its order and is dealt out like that; one of batches in whole batches. IterableDatasets
    and distributed samplers stay as they are. set_epoch() is called for you before each iteration: the epochs are 0, 1,
    2, ...; a number that you set yourself wins. `global_batch`: see `GlobalBatch`.

    Resuming: each report() keeps the epoch and how many samples were handed out. After get_checkpoint(), the first
    iteration continues with the next ones, without loading those before (an IterableDataset has to read over them), if
    the checkpoint was reported inside the loop over this loader, in the epoch of that loop; so let your own loop
    start with that epoch again. If that was behind the last batch, the first iteration is empty. A checkpoint reported
    after the loop resumes with the next epoch from its first batch. `len()` is always that of a whole epoch.
    Leaving the loop with `break` ends the epoch; `next(iter(loader))` for a look at the data does not count.

    Do not skip batches yourself: that would skip twice, and raises SkippedTwiceError where it shows. `resume=False` is
    for loops with resume code of their own: every iteration then starts at its epoch's first batch.

    ```python
    loader = trainjob.prepare_data_loader(DataLoader(data, batch_size=32, shuffle=True))
    for images, labels in loader:  # this rank's share, on its device
        loss = torch.nn.functional.cross_entropy(model(images), labels)
    ```
    """
    if not isinstance(data_loader, DataLoader):
        raise TypeError(f"prepare_data_loader needs a torch.utils.data.DataLoader, got {type(data_loader).__name__}")
    if isinstance(data_loader, Prepared):
        return data_loader
    if global_batch is not None:
        global_batch.check(data_loader, add_dist_sampler)
    here = place()
    # Not through the constructor: a copy keeps what subclasses and later versions of torch add to it.
    kind = _prepared_class(type(data_loader))
    loader: DataLoader[Any] = object.__new__(kind)
    loader.__dict__.update(data_loader.__dict__, _iterator=None)
    if add_dist_sampler and not isinstance(loader.dataset, IterableDataset):
        samplers.distribute(loader, here.rank, here.world_size, even_batches, global_batch)
    device = get_device() if move_to_device else torch.device("cpu")
    loader.__dict__["_preparation"] = _Preparation(
        loader, device, auto_transfer, whole=not add_dist_sampler, global_batch=global_batch
    )
    if resume:
        loader.__dict__["_preparation"].keep_position()
    return loader


class Prepared:
    """Mixed into the class of a prepared loader: iteration, and `set_epoch` for loops that number epochs themselves."""

    _preparation: _Preparation

    def __iter__(self) -> Iterator[Any]:
        return self._preparation.iterate(super().__iter__)  # type: ignore[misc]

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch."""
        self._preparation.chosen_epoch = epoch


_classes: Dict[type, Type[Any]] = {}


def _prepared_class(base: type) -> Type[Any]:
    if base not in _classes:
        _classes[base] = type(f"Prepared{base.__name__}", (Prepared, base), {})
    return _classes[base]


class _Preparation:
    """What a prepared loader carries. Holds it weakly: a loader that the user drops is dropped from the checkpoints."""

    def __init__(
        self,
        loader: DataLoader[Any],
        device: torch.device,
        auto_transfer: bool,
        whole: bool,
        global_batch: Optional[GlobalBatch],
    ) -> None:
        """`whole`: each rank has all the data, if no distributed sampler of the user's says otherwise."""
        self._loader = weakref.ref(loader)
        self._device = device
        self._auto_transfer = auto_transfer
        self._iterable = isinstance(loader.dataset, IterableDataset)
        self._keep_generators = whole or self._iterable or loader.generator is not None
        self._setters = samplers.epoch_setters(loader)
        self._last_set: Dict[int, int] = {
            id(setter): setter.epoch for setter in self._setters if isinstance(getattr(setter, "epoch", None), int)
        }
        source = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
        self._dealt = None if whole or self._iterable else samplers.dealt(loader)
        self._indices = self._dealt or samplers.Resumable(source)
        self._per_batch = _counted_as(source, whole, self._dealt)
        self._global_batch = global_batch
        self._seeded = SeededDataset(loader.dataset)
        self.chosen_epoch: Optional[int] = next((epoch for epoch in self._last_set.values() if epoch), None)
        self.position = Position()
        self._own_skip = OwnSkip()
        self._told: Optional[int] = None
        self._saved_as: Optional[int] = None
        """The epoch that the user's loop named when the epoch that is being resumed was saved."""
        self._name = rank_state.numbered(KIND)

    def keep_position(self, name: Optional[str] = None) -> None:
        """From now on the position travels with checkpoints. `name`: for a loader that is made anew while it is the
        same one to the user.
        """
        loader = self._loader()
        self._name = name or self._name
        provider = rank_state.register(self._name, self._save, self._resume)
        weakref.finalize(loader, rank_state.unregister, self._name, provider)
        _watch_optimizers()
        _watched.add(self._own_skip)

    def _save(self) -> Dict[str, Any]:
        self._own_skip.worked()  # this is a report()
        named = calls.reported_epoch()
        if self.position.resumed and None not in (named, self._saved_as) and named != self._saved_as:
            warnings.warn(
                f"report(epoch={named}) in the rest of an epoch that was {self._saved_as} when the checkpoint was "
                f"taken: the loop began with the wrong epoch, and {named} would be cut short. A checkpoint that is "
                "reported inside the loop over the data resumes in its own epoch: begin with the saved number, not "
                "with the one after it.",
                stacklevel=4,
            )
            self._saved_as = None
        return {**self.position.save(), "usual": self._own_skip.save(), "named": named}

    def _resume(self, saved: rank_state.Saved) -> None:
        here, state = place(), saved.state
        if saved.world_size != here.world_size and saved.first is not None:
            state = saved.first  # all ranks go on from one cursor, whatever each of the old ones had been handed
        self._own_skip.restore(state.get("usual"), -(-saved.world_size // here.world_size))
        self._saved_as = state.get("named")
        exact = self.position.restore(state, saved.world_size, here.world_size, self._per_batch)
        if saved.world_size != here.world_size and state["open"] and (not exact or self._iterable):
            what = "An IterableDataset" if self._iterable else "A distributed sampler of your own"
            warnings.warn(
                f"The checkpoint was taken with {saved.world_size} ranks inside an epoch, and there are "
                f"{here.world_size} now. {what} divides itself between ranks, so that only about as much is left out "
                "as was handed out: some samples may be seen again, and others not. Let prepare_data_loader deal a "
                "map-style dataset, and each sample comes once.",
                stacklevel=2,
            )

    def iterate(self, make_iterator: Any) -> Iterator[Any]:
        """Begin an iteration now; the batches come from the generator that is returned."""
        loader = self._loader()
        assert loader is not None, "the loader is being iterated"
        run = self.position.begin(self._chosen())
        self._own_skip.begins(run.epoch, run.skip)
        self._set_epoch(run.epoch)
        batches = self._start(loader, make_iterator, run)
        if self._dealt is not None:
            self.position.dealt(self._dealt.dealing)
        self._tell(run, loader)
        skip = run.skip if self._iterable else 0
        seeded = (
            self._batches_in_place(loader, batches, run, skip)
            if reproducible.seed() is not None and loader.num_workers == 0
            else batches
        )
        for _ in islice(seeded, skip):
            pass  # an IterableDataset has no indices to leave out
        seeded = pace.batches(seeded, link.present, self._device.type != "cpu", transfer.still_works(self._device))
        if self._device.type != "cpu":
            seeded = transfer.moved(seeded, self._device, self._auto_transfer)
        return self._hand_out(seeded, run, loader, None if self._dealt is None else self._dealt.dealing)

    def _hand_out(
        self, batches: Iterator[Any], run: Pass, loader: DataLoader[Any], dealing: Optional[Dealing]
    ) -> Iterator[Any]:
        # `loader` is held here: a pass over a loader that nobody else holds still counts until its end.
        try:
            reproducible.before_first_batch()
            for number, batch in enumerate(batches):
                self.position.handed_out(run)
                if self._global_batch is not None:
                    self._global_batch.handed_out(dealing, number, place().rank)
                self._own_skip.handed_out()
                yield batch
                reproducible.passed_first_batch()
                self._own_skip.went_by()
            self.position.exhausted(run)
            self._own_skip.ended()
        except GeneratorExit:
            self.position.given_up(run)
            raise

    def _tell(self, run: Pass, loader: DataLoader[Any]) -> None:
        """A line on rank 0 when an epoch is resumed: who reads the log must see that batches are left out."""
        if not run.skip or self._told == run.epoch or place().rank != 0:
            return
        self._told = run.epoch
        if self._dealt is None:
            where = f"batch {run.skip}" if self._iterable else f"batch {run.skip} of {len(loader)}"
        else:
            where = f"batch {run.skip}, sample {run.cursor} of {self._dealt.dealing.length}"
        print(
            f"prepare_data_loader: epoch {run.epoch} continues after {where}, where the checkpoint was taken",
            file=sys.stderr,
            flush=True,
        )

    def _chosen(self) -> Optional[int]:
        """The epoch that the user set since the last iteration, on the loader or on a sampler of it."""
        chosen, self.chosen_epoch = self.chosen_epoch, None
        for setter in self._setters:
            if id(setter) in self._last_set and setter.epoch != self._last_set[id(setter)]:
                chosen = int(setter.epoch)
        return chosen

    def _set_epoch(self, epoch: int) -> None:
        for setter in self._setters:
            setter.set_epoch(epoch)
            if id(setter) in self._last_set:
                self._last_set[id(setter)] = epoch

    def _start(self, loader: DataLoader[Any], make_iterator: Any, run: Pass) -> Iterator[Any]:
        """torch's iterator for this pass: created with the generators as they were when the epoch first began."""
        seed = reproducible.seed()
        rank = place().rank
        with ExitStack() as stack:
            if seed is not None:
                stack.enter_context(reproducible.drawing_from(reproducible.derived(rank, self._name, run.epoch)))
            if run.start is not None:
                stack.enter_context(_generators_at(run.start, loader.generator))
            if self._keep_generators:
                self.position.began(run.start or _generators(loader.generator))
            if not self._iterable:
                if isinstance(self._indices, samplers.Dealt):
                    self._indices.cursor = run.cursor or 0
                else:
                    self._indices.skip = run.skip
                in_workers = seed is not None and loader.num_workers > 0
                self._indices.seeds = (lambda number: self._seed(run, number)) if in_workers else None
                stack.enter_context(self._substituted(loader, in_workers))
            batches: Iterator[Any] = make_iterator()
        return batches

    @contextmanager
    def _substituted(self, loader: DataLoader[Any], seeded: bool) -> Iterator[None]:
        # Only torch's iterator sees ours: `loader.batch_sampler` and `loader.dataset` stay the user's.
        name = "batch_sampler" if loader.batch_sampler is not None else "sampler"
        kept = {key: loader.__dict__[key] for key in (name, "dataset")}
        loader.__dict__[name] = self._indices
        if seeded:
            loader.__dict__["dataset"] = self._seeded
        try:
            yield
        finally:
            loader.__dict__.update(kept)

    def _batches_in_place(
        self, loader: DataLoader[Any], batches: Iterator[Any], run: Pass, skipped: int
    ) -> Iterator[Any]:
        """Load each batch in this process from a seed of its own, and leave the generators as the training step had
        them.
        """
        number = -skipped
        while True:
            with reproducible.drawing_from(self._seed(run, number)):
                try:
                    batch = next(batches)
                except StopIteration:
                    return
            number += 1
            yield batch

    def _seed(self, run: Pass, number: int) -> int:
        """Of one batch of this pass: the same however often the epoch was resumed, and at another number of ranks none
        that a rank has used.
        """
        rank = place().rank
        if self._dealt is None:
            return reproducible.derived(rank, self._name, run.epoch, run.skip + number)
        return reproducible.derived(rank, self._name, run.epoch, "at", self._dealt.begins(number))


def _counted_as(source: Any, whole: bool, dealt: Optional[samplers.Dealt]) -> Optional[int]:
    """What `Position.restore` is to take a rank's batch for."""
    if whole:
        return None if samplers.is_distributed(source) else 0
    if dealt is None:
        return None
    # A batch sampler of the user's is dealt in whole batches, whatever batch_size it has.
    return int(source.batch_size) if isinstance(source, samplers.DealtBatches) else 1


_watched: weakref.WeakSet[OwnSkip] = weakref.WeakSet()
_watching = False


def _watch_optimizers() -> None:
    """Have every optimizer of this process tell when it stepped."""
    global _watching
    if not _watching:
        _watching = True
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(_stepped)


def _stepped(*_: Any) -> None:
    for own_skip in list(_watched):
        own_skip.worked()


def _generators(generator: Optional[torch.Generator]) -> Dict[str, Any]:
    return {"torch": torch.get_rng_state(), "own": None if generator is None else generator.get_state()}


@contextmanager
def _generators_at(start: Dict[str, Any], generator: Optional[torch.Generator]) -> Iterator[None]:
    """torch's generator as noted inside the block and as it was after it; the loader's own resumes from the noted
    state.
    """
    kept = torch.get_rng_state()
    torch.set_rng_state(start["torch"])
    if generator is not None and start["own"] is not None:
        generator.set_state(start["own"])
    try:
        yield
    finally:
        torch.set_rng_state(kept)

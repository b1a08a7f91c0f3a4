"""What user code calls while it trains: report, log, get_context, get_checkpoint, barrier, broadcast_from_rank_zero.

Exported lazily by `trainjob`. Each checks its arguments here, where they enter, and passes plain messages to `link`;
what they mean is decided by the agents. report(), barrier() and broadcast_from_rank_zero() are collectives: every
rank makes the same calls in the same order.
"""

from __future__ import annotations

import math
import os
import pickle
from typing import Any, Callable, List, Mapping, Optional, TypeVar, Union

from trainjob import session
from trainjob.session import alias, apart, milestones, offering, pace, rank_state, warned
from trainjob.session.arguments import told
from trainjob.session.checkpoint import Checkpoint
from trainjob.session.contents import Brought
from trainjob.session.context import TrainContext
from trainjob.session.line import Line
from trainjob.session.link import link
from trainjob.session.metrics import plain
from trainjob.session.preemption import PreemptionInfo
from trainjob_api import contract
from trainjob_api.rank_messages import Collective, Preemption, Released

T = TypeVar("T")

WHOLE_LIMIT = 2**63
"""What the job's status can say of a step."""
BROADCAST_WARN_BYTES = 1024 * 1024
BROADCAST_LIMIT = 16 * 1024 * 1024
"""Each agent holds it in memory, beside the training."""


class _Position:
    """Which checkpoint get_checkpoint() returns: the attempt's own until a report released a newer one."""

    def __init__(self) -> None:
        self.asked = False
        self.current: Optional[Checkpoint] = None
        self.released_id: Optional[str] = None
        self.newest: Optional[str] = None
        """The last one that a report released, whether it was asked for or not."""
        self.epoch: Optional[int] = None
        self.requested = False
        """The last answer that all ranks got said that a checkpoint is wished."""
        self.preemption: Optional[Preemption] = None
        """The same answer said that workers are to go."""
        self.uploads = 0
        """Names that upload functions were given."""

    def heard(self, reply: Released) -> None:
        """An answer that all ranks got."""
        self.requested, self.preemption = reply.requested, reply.preemption


_position = _Position()
_watch = apart.Watch()


@told
def report(
    metrics: Mapping[str, Any],
    checkpoint: Optional[Checkpoint] = None,
    checkpoint_dir_name: Optional[str] = None,
    checkpoint_upload_mode: Union[offering.CheckpointUploadMode, str, None] = None,
    delete_local_checkpoint_after_upload: Optional[bool] = None,
    checkpoint_upload_fn: Optional[Callable[[Checkpoint, str], Checkpoint]] = None,
    validation: Any = False,
    *,
    step: Optional[int] = None,
    total_steps: Optional[int] = None,
    epoch: Optional[int] = None,
) -> None:
    """A barrier of all ranks that carries metrics (rank 0's are the job's) and, from any rank, a checkpoint's files.

    Every rank calls it, as often as the others. It returns when all have called it and the files are safe as the mode
    promises.

    - `metrics`: names to numbers, texts, and lists and dicts of these; tensors and arrays of one element count as
      numbers.
    - `checkpoint`: the files of any one rank, of some, or of all; they are merged into one checkpoint.
    - `checkpoint_upload_mode`: a CheckpointUploadMode or its name; ASYNC unless given.
    - `delete_local_checkpoint_after_upload`: True lets the files be moved instead of copied. Absent, they may go only
      when the mode is spelled out as ASYNC (as in Ray Train) or when from_dict() made them.
    - `step`, `total_steps`, `epoch`: whole numbers, for the progress that is shown and the time left. Ranks that give a
      `step` give the same one with a checkpoint: states of different steps are refused.
    - `checkpoint_upload_fn`: called with the checkpoint and a name for a folder; what it returns is reported instead,
      as with NO_UPLOAD: it stays where it is. For code that writes files in a way of its own.
    - `validation`: True, or a ValidationTaskConfig: the checkpoint is validated beside the training by the function of
      `TorchTrainer(validation_config=...)`, and what that measures joins its metrics. Rank 0's word counts.
    - `checkpoint_dir_name`: the name that `checkpoint_upload_fn` gets; without that function a link to the checkpoint
      in the job's folder, where rank 0 gives it and storage is a path. Once the
      checkpoint is removed, it goes when names are given again.

    Raises RankGoneError when another rank has ended, BarrierTimeoutError, BarrierMismatchError when ranks call
    different things, CheckpointError, StorageError (`on_upload_failure="Fail"`), ValueError (metrics).

    ```python
    state = {"model": model.state_dict(), "epoch": epoch}
    trainjob.report({"loss": loss.item()}, checkpoint=trainjob.Checkpoint.from_dict(state), step=epoch + 1)
    ```
    """
    offering.mode_of(checkpoint_upload_mode)
    if checkpoint_dir_name is not None and (refused := alias.refusal(checkpoint_dir_name)):
        raise ValueError(refused)
    values = plain(metrics)
    if validation and session.validate is None:
        raise ValueError("report(validation=...) needs TorchTrainer(validation_config=ValidationConfig(fn=...))")
    if checkpoint_upload_fn is not None and checkpoint is not None:
        _position.uploads += 1
        checkpoint = offering.uploaded(checkpoint_upload_fn, checkpoint, checkpoint_dir_name, _position.uploads)
        checkpoint_upload_mode, checkpoint_dir_name = offering.CheckpointUploadMode.NO_UPLOAD, None
    line = link()
    who = line.context
    call = Collective(
        0,
        contract.KIND_REPORT,
        _timeout(None),
        values,
        _whole("step", step),
        _whole("total_steps", total_steps),
        _whole("epoch", epoch),
        stop=session.stop_criterion is not None and who.rank == 0 and bool(session.stop_criterion(dict(values))),
        wanted=session.all_ranks,
    )
    if checkpoint is not None and offering.mode_of(checkpoint_upload_mode) == contract.UPLOAD_NONE:
        checkpoint = offering.left_there(checkpoint)
    if checkpoint is not None:
        offer = offering.offer(checkpoint, checkpoint_upload_mode, delete_local_checkpoint_after_upload)
        call = call._replace(checkpoint=offer)
    _position.epoch = call.epoch
    _watch.look(who, reports=True)
    milestones.step(line)
    line.flush()
    with pace.reporting(line):
        reply = _call_report(line, call)
    _position.heard(reply)
    for text in reply.warnings:
        warned.once(text, text)  # a loop gets the same with each checkpoint
    if reply.checkpoint is not None:
        _position.released_id = _position.newest = reply.checkpoint.id
        if checkpoint_dir_name is not None and who.rank == 0:
            offering.name(checkpoint_dir_name, reply.checkpoint.id, who.storage)
        if validation and who.rank == 0 and session.validate is not None:
            session.validate(reply.checkpoint.id, validation)
    elif validation:
        raise ValueError("report(validation=...): no rank brought a checkpoint that could be validated")
    if call.checkpoint is not None and call.checkpoint.delete and checkpoint is not None and not checkpoint.owned:
        offering.remove_emptied(call.checkpoint.path)
    if session.after_report is not None:
        session.after_report()
    if reply.stop:
        raise SystemExit(0)


def _call_report(line: Line, call: Collective) -> Released:
    """The state of a rank that brings no checkpoint is asked for, if another one does: taking it costs time."""
    world_size = line.context.world_size
    if call.checkpoint is not None:
        return line.collective(call._replace(blob=rank_state.collect(world_size)))
    if not rank_state.is_there():
        return line.collective(call)
    return line.collective(call._replace(has_state=True), lambda: rank_state.collect(world_size))


@told
def log(metrics: Mapping[str, Any], step: Optional[int] = None) -> None:
    """Metrics of one step, without a barrier: a few microseconds, for every step. Rank 0's are the job's.

    `metrics` as for `report()`; `step`: a whole number, the x axis of their curves. A row is lost only if the rank is
    killed within 0.2 s. Raises ValueError for what `report()` would not take as metrics.

    ```python
    trainjob.log({"loss": loss.item(), "lr": schedule.get_last_lr()[0]}, step=step)
    ```
    """
    line = link()
    row, whole = plain(metrics, "log"), step if step is None else _whole("step", step)
    milestones.step(line)
    if line.context.rank == 0:
        line.add_row(row, whole)


def get_context() -> TrainContext:
    """This rank's place in the job: world size, ranks, job name, attempt, storage.

    Raises NotInWorkerError in a process that no job started.

    ```python
    if trainjob.get_context().get_world_rank() == 0:
        print("only once")
    ```
    """
    return link().context


def get_checkpoint() -> Optional[Checkpoint]:
    """The newest checkpoint: the one this attempt resumes from, or None; after a report() with a checkpoint, that one.

    The first call also brings back this rank's state (data position, random numbers) from the checkpoint that is
    resumed. Raises CheckpointError when it cannot be read.

    ```python
    if checkpoint := trainjob.get_checkpoint():
        model.load_state_dict(checkpoint.to_dict()["model"])
    ```
    """
    line = link()
    _watch.look(line.context)
    if not _position.asked:
        found = line.restore(None)
        if found is not None:
            _position.current = restored(found)
            if found.get("state"):
                rank_state.bring(found, line.context.world_size, line.fetch)
        _position.asked = True
    if _position.released_id is not None:
        wanted, _position.released_id = _position.released_id, None
        found = line.restore(wanted)
        if found is not None:
            _position.current = restored(found)
    milestones.asked(line)
    return _position.current


def restored(found: Mapping[str, Any]) -> Checkpoint:
    """The handle for a `restored` reply of the agent, which brings the files when they are asked for."""
    id_ = str(found["id"])

    def fetch(paths: Optional[List[str]], apart: bool = False) -> str:
        folder = link().fetch(id_, paths, apart)
        milestones.restored()
        return folder

    def is_old() -> bool:
        return _position.newest not in (None, id_)

    return Checkpoint.from_restored(found, Brought(str(found["listing"]), fetch, is_old))


def reported_epoch() -> Optional[int]:
    """The epoch that the newest report(), or the one that is being made, was given."""
    return _position.epoch


@told
def barrier(timeout_s: Optional[float] = None) -> None:
    """Wait for all ranks. Raises RankGoneError, BarrierTimeoutError (after `timeout_s`; absent: no limit),
    BarrierMismatchError.

    ```python
    if trainjob.get_context().get_world_rank() == 0:
        os.makedirs("prepared", exist_ok=True)  # once, by rank 0
    trainjob.barrier()  # from here on it is there for all
    ```
    """
    line = link()
    with pace.waiting():
        reply = line.collective(Collective(0, contract.KIND_BARRIER, _timeout(timeout_s)))
    _position.heard(reply)


@told
def broadcast_from_rank_zero(data: T, timeout_s: Optional[float] = None) -> T:
    """Rank 0's `data` on every rank (what the others pass is ignored), also without torch.distributed.

    Pickled: meant for small things, warns over 1 MiB. Raises ValueError over 16 MiB, and as barrier() does.
    `timeout_s` as there.

    ```python
    words = ["a", "b"] if trainjob.get_context().get_world_rank() == 0 else None
    words = trainjob.broadcast_from_rank_zero(words)
    ```
    """
    line = link()
    blob = _pickled(data) if line.context.rank == 0 else b""
    with pace.waiting():
        reply = line.collective(Collective(0, contract.KIND_BROADCAST, _timeout(timeout_s), blob=blob))
    _position.heard(reply)
    if line.context.rank == 0:
        return data
    received: T = pickle.loads(reply.blob)
    return received


def checkpoint_requested() -> bool:
    """Whether now would be a good time for a checkpoint: a planned change (another size, a restart, a suspension) waits
    for the next report() that brings one, and then loses no step.

    What it says came with the last `report()`, `barrier()` or `broadcast_from_rank_zero()`, the same to all ranks, so
    that they agree without asking each other. It costs nothing. False before the first of these. Raises
    NotInWorkerError in a process that no job started.

    ```python
    if step % 1000 == 0 or trainjob.checkpoint_requested():
        state = {"model": model.state_dict(), "step": step}
        trainjob.report({"loss": loss.item()}, checkpoint=trainjob.Checkpoint.from_dict(state), step=step)
    ```
    """
    link()
    return _position.requested


def get_preemption_info() -> Optional[PreemptionInfo]:
    """Which workers are about to be taken away (a drained node, a spot notice, an eviction), and by when; None: none.

    Heard as `checkpoint_requested()` is: with the last `report()`, `barrier()` or `broadcast_from_rank_zero()`, the
    same on all ranks, at no cost. The next `report()` with a checkpoint ends the attempt, and no step is lost. Of more
    than 64 workers that go at once, the first 64 are named. Raises NotInWorkerError in a process that no job started.

    ```python
    info = trainjob.get_preemption_info()
    if info is not None:
        print(f"rank(s) {info.preempted_ranks} go in {info.seconds_left()} s; this one: {info.this_rank}")
    ```
    """
    line = link()
    return None if _position.preemption is None else PreemptionInfo.of(_position.preemption, line.context.rank)


def reset() -> None:
    """Forget which checkpoint is current: for processes that are many ranks in a row."""
    global _position, _watch
    _position, _watch = _Position(), apart.Watch()
    milestones.reset()
    pace.reset()
    warned.clear()


def _pickled(data: Any) -> bytes:
    try:
        blob = pickle.dumps(data, protocol=4)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ValueError(
            f"broadcast_from_rank_zero: data of type {type(data).__name__} cannot be pickled: {error}"
        ) from error
    if len(blob) > BROADCAST_LIMIT:
        raise ValueError(
            f"broadcast_from_rank_zero: data of {len(blob) / 2**20:.0f} MiB (pickled) is more than the "
            f"{BROADCAST_LIMIT >> 20} MiB that go through the agents. Use torch.distributed.broadcast for tensors, or "
            "save the data to a file that every rank reads (a checkpoint, a shared folder)."
        )
    if len(blob) > BROADCAST_WARN_BYTES:
        warned.once(
            f"broadcast_from_rank_zero sends {len(blob) / 2**20:.1f} MiB through the agents; it is meant for small "
            "things. Use torch.distributed.broadcast for tensors."
        )
    return blob


def _timeout(timeout_s: Optional[float]) -> Optional[float]:
    if timeout_s is None:
        text = os.environ.get(contract.ENV_BARRIER_TIMEOUT_S)
        if not text:
            return None
        try:
            timeout_s = float(text)
        except ValueError:
            raise ValueError(f"{contract.ENV_BARRIER_TIMEOUT_S}={text!r} is no number of seconds") from None
    if not timeout_s > 0:
        raise ValueError(f"timeout_s={timeout_s!r} must be a number of seconds above 0 (None: wait without a limit)")
    return None if math.isinf(timeout_s) else float(timeout_s)


def _whole(name: str, value: Optional[int]) -> Optional[int]:
    if value is None or (type(value) is int and abs(value) < WHOLE_LIMIT):
        return value
    try:
        whole = int(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name}={value!r} must be a whole number") from None
    if whole != value or not abs(whole) < WHOLE_LIMIT:
        raise ValueError(f"{name}={value!r} must be a whole number below 2**63")
    return whole

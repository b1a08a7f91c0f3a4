"""XGBoost over the ranks of a TrainJob: its tracker beside rank 0, and its booster as the job's checkpoint.

```python
with trainjob.xgboost.communicator():
    start = trainjob.xgboost.load_booster()
    booster = xgboost.train(params, data, num_boost_round=trainjob.xgboost.rounds_left(100), xgb_model=start,
                            callbacks=[trainjob.xgboost.ReportCallback(every_n_rounds=10)])
```
"""

from __future__ import annotations

import contextlib
import json
from typing import Any, Dict, Iterator, List, Optional

from trainjob.integrations import boosters
from trainjob.integrations.needed import missing
from trainjob.integrations.ring import own_address
from trainjob.session import calls

try:
    import xgboost
    from xgboost.callback import TrainingCallback
    from xgboost.tracker import RabitTracker
except ImportError as error:
    raise missing("xgboost", "xgboost>=2.1", error) from error

__all__ = ["ReportCallback", "communicator", "load_booster", "rounds_left"]

FILE = "model.ubj"
"""The booster inside the checkpoint, as Ray Train names it."""


@contextlib.contextmanager
def communicator() -> Iterator[None]:
    """XGBoost's collectives among the ranks of the job, in the order of the ranks, inside the block. Every rank enters
    it; a rank that dies ends the attempt, and the block with it.
    """
    context = calls.get_context()
    if context.world_size == 1:
        yield
        return
    tracker: Any = None
    if context.rank == 0:
        tracker = RabitTracker(host_ip=own_address(), n_workers=context.world_size, sortby="task")
        tracker.start()
    arguments: Dict[str, Any] = calls.broadcast_from_rank_zero(tracker.worker_args() if tracker else {})
    with xgboost.collective.CommunicatorContext(**arguments, dmlc_task_id=f"{context.rank:08d}"):
        yield
    if tracker is not None:
        tracker.wait_for()


class ReportCallback(TrainingCallback):  # type: ignore[misc,unused-ignore]
    """Reports after each n-th round, and after the last one: the evaluation's metrics, the booster with them.

    `every_n_rounds`: a whole number from 1; None: after the last round alone, and where a planned change (another size,
    a restart, a suspension) waits for a checkpoint. Metrics are named `<data>-<metric>`, with
    `round`, the number of rounds that the booster has.
    """

    def __init__(self, every_n_rounds: Optional[int] = 1):
        super().__init__()
        self._rounds = boosters.Rounds(every_n_rounds)
        self._metrics: Dict[str, Any] = {}
        self._reported = -1

    def before_training(self, model: Any) -> Any:
        """Warns where what was drawn until here cannot be drawn on."""
        boosters.tell_of_sampling("XGBoost", model.num_boosted_rounds(), _sampled(json.loads(model.save_config())))
        return model

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        """`epoch` counts from 0, also of a training that continues."""
        self._metrics = {
            f"{data}-{name}": float(values[-1][0] if isinstance(values[-1], tuple) else values[-1])
            for data, names in evals_log.items()
            for name, values in names.items()
        }
        rounds = model.num_boosted_rounds()
        if self._rounds.is_due(rounds):
            self._report(model, rounds)
        return False

    def after_training(self, model: Any) -> Any:
        """The last one, unless it was reported."""
        rounds = model.num_boosted_rounds()
        if rounds != self._reported:
            self._report(model, rounds)
        return model

    def _report(self, model: Any, rounds: int) -> None:
        self._reported = rounds
        boosters.report(self._metrics, rounds, FILE, model.save_model)


def _sampled(config: Any) -> List[str]:
    """The parameters by which it samples, of its own description of itself."""
    found = set()
    for name, value in config.items() if isinstance(config, dict) else ():
        if isinstance(value, dict):
            found.update(_sampled(value))
        elif (name == "subsample" or name.startswith("colsample_")) and float(value) < 1:
            found.add(name)
    return sorted(found)


def load_booster() -> Optional[Any]:
    """The booster of the newest checkpoint for `xgboost.train(xgb_model=...)`; None: the training begins.

    Without sampling (`subsample`, `colsample_*`) the rest of the training gives the model of an undisturbed one, bit
    for bit. With it XGBoost begins its random numbers anew at each call of train().
    """
    return _newest.load()


def rounds_left(num_boost_round: int) -> int:
    """Of so many rounds, those that the newest checkpoint has not: for `xgboost.train(num_boost_round=...)`, which
    counts anew.
    """
    return _newest.rounds_left(num_boost_round)


_newest = boosters.Newest(
    FILE, lambda path: xgboost.Booster(model_file=path), lambda booster: booster.num_boosted_rounds()
)

"""LightGBM over the ranks of a TrainJob: the list of machines that it needs, and its booster as the job's checkpoint.

```python
booster, left = trainjob.lightgbm.load_booster(), trainjob.lightgbm.rounds_left(100)
if left:
    booster = lightgbm.train({**params, **trainjob.lightgbm.network_params()}, data, init_model=booster,
                             num_boost_round=left, callbacks=[trainjob.lightgbm.ReportCallback(every_n_rounds=10)])
```
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from trainjob.integrations import boosters
from trainjob.integrations.needed import missing
from trainjob.integrations.ring import free_port, gathered, own_address
from trainjob.session import calls

try:
    import lightgbm
except ImportError as error:
    raise missing("lightgbm", "lightgbm>=4.5", error) from error

__all__ = ["ReportCallback", "load_booster", "network_params", "rounds_left"]

_SAMPLED = {
    **dict.fromkeys(("bagging_fraction", "subsample", "sub_row", "bagging"), "bagging_fraction"),
    **dict.fromkeys(("feature_fraction", "colsample_bytree", "sub_feature"), "feature_fraction"),
    **dict.fromkeys(("feature_fraction_bynode", "colsample_bynode", "sub_feature_bynode"), "feature_fraction_bynode"),
}
"""LightGBM's parameters of sampling under all their names."""
FILE = "model.txt"
"""The booster inside the checkpoint, as Ray Train names it."""


def network_params() -> Dict[str, Any]:
    """`machines`, `local_listen_port`, `num_machines`, `tree_learner` and `pre_partition` for `lightgbm.train(params)`.

    Every rank calls it, and each time anew: the ports are those of this attempt. `pre_partition`: each rank brings its
    own part of the rows. With one rank it is empty. LightGBM's own peers never notice that one of them has died; the
    agents do, and end all ranks.
    """
    context = calls.get_context()
    if context.world_size == 1:
        return {}
    port = free_port()
    machines = gathered(f"{own_address()}:{port}")
    return {
        "machines": ",".join(machines),
        "local_listen_port": port,
        "num_machines": context.world_size,
        "tree_learner": "data",
        "pre_partition": True,
    }


class ReportCallback:
    """Reports after each n-th round, and after the last one of `num_boost_round` (early stopping ends before it): the
    evaluation's metrics, the booster with them.

    `every_n_rounds`: a whole number from 1; None: after the last round alone, and where a planned change (another size,
    a restart, a suspension) waits for a checkpoint. Metrics are named `<data>-<metric>`, with `round`, the number of
    rounds that the booster has.
    """

    order = 25
    """After LightGBM's own callbacks of 10 to 20, before early stopping, which raises."""
    before_iteration = False

    def __init__(self, every_n_rounds: Optional[int] = 1):
        self._rounds = boosters.Rounds(every_n_rounds)

    def __call__(self, env: Any) -> None:
        """LightGBM calls it after each round, on every rank."""
        rounds = env.model.current_iteration()
        if env.iteration == env.begin_iteration:
            boosters.tell_of_sampling("LightGBM", env.begin_iteration, _sampled(env.params))
        is_last = env.iteration + 1 == env.end_iteration
        if not (self._rounds.is_due(rounds) or is_last):
            return
        metrics = {f"{row[0]}-{row[1]}": float(row[2]) for row in env.evaluation_result_list or ()}
        boosters.report(metrics, rounds, FILE, lambda path: env.model.save_model(path, num_iteration=-1))


def _sampled(params: Dict[str, Any]) -> List[str]:
    return sorted({_SAMPLED[name] for name, value in params.items() if name in _SAMPLED and float(value) < 1})


def load_booster() -> Optional[Any]:
    """The booster of the newest checkpoint for `lightgbm.train(init_model=...)`; None: the training begins.

    Without sampling (`bagging_fraction`, `feature_fraction`) the rest of the training gives the model of an undisturbed
    one, bit for bit. With it LightGBM begins its random numbers anew at each call of train().
    """
    return _newest.load()


def rounds_left(num_boost_round: int) -> int:
    """Of so many rounds, those that the newest checkpoint has not: for `lightgbm.train(num_boost_round=...)`, which
    counts anew, and refuses 0: a job that lost a rank behind its last round has nothing left to do.
    """
    return _newest.rounds_left(num_boost_round)


_newest = boosters.Newest(
    FILE, lambda path: lightgbm.Booster(model_file=path), lambda booster: booster.current_iteration()
)

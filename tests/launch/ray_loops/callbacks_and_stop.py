"""A user callback that follows the run, and a stop criterion by a metric."""

import sys
import tempfile

from trainjob import (
    Checkpoint,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    UserCallback,
    get_checkpoint,
    get_context,
    report,
)
from trainjob.torch import TorchTrainer


class Logger(UserCallback):
    def __init__(self):
        self.rows, self.errors, self.ranks = [], [], []

    def after_report(self, run_context, metrics, checkpoint):
        self.ranks.append([one["rank"] for one in metrics])
        self.rows.append((metrics[0]["iteration"], checkpoint is not None, run_context.get_run_config().name))

    def after_exception(self, run_context, worker_exceptions):
        self.errors.append(worker_exceptions)


def train_func():
    first, rank = get_checkpoint() is None, get_context().get_world_rank()
    for iteration in range(0 if first else 3, 1000):
        if first and iteration == 3 and rank == 1:
            raise ValueError("unlucky")
        with tempfile.TemporaryDirectory() as d:
            open(f"{d}/x", "w").close()
            metrics = {"iteration": iteration, "mean_accuracy": iteration / 10, "rank": rank}
            report(metrics, checkpoint=Checkpoint.from_directory(d))


if __name__ == "__main__":
    logger = Logger()
    trainer = TorchTrainer(
        train_func,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="Stop_Me",
            storage_path=sys.argv[1],
            stop={"mean_accuracy": 0.6},
            callbacks=[logger],
            failure_config=FailureConfig(max_failures=-1),
        ),
    )
    result = trainer.fit()
    assert result.metrics["iteration"] == 6, result.metrics
    assert [row[0] for row in logger.rows] == [0, 1, 2, 3, 4, 5, 6], logger.rows
    assert logger.ranks == [[0, 1]] * 7, logger.ranks
    assert all(row[2] == "Stop_Me" for row in logger.rows)
    assert logger.rows[-1][1]
    assert len(logger.errors) == 1 and "unlucky" in str(logger.errors[0][1])
    assert isinstance(logger.errors[0][1], ValueError)

from typing import Any, Dict, List, Optional
import os
import ray.train
from ray.train import Checkpoint, RunConfig, ScalingConfig, UserCallback
from ray.train.torch import TorchTrainer


class CustomMetricsCallback(UserCallback):
    def after_report(self, run_context, metrics: List[Dict[str, Any]], checkpoint: Optional[Checkpoint]):
        rank_0_metrics = metrics[0]
        print("rank 0:", rank_0_metrics, "mean:", sum(m["loss"] for m in metrics) / len(metrics), "workers:", len(metrics), flush=True)
        open("seen.txt", "a").write(str(sum(m["loss"] for m in metrics) / len(metrics)) + "\n")


def train_fn(config):
    rank = ray.train.get_context().get_world_rank()
    for i in range(3):
        ray.train.report({"loss": 10.0 * rank, "iteration": i})


TorchTrainer(train_fn, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(callbacks=[CustomMetricsCallback()])).fit()
assert open("seen.txt").read().split() == ["5.0"] * 3, open("seen.txt").read()

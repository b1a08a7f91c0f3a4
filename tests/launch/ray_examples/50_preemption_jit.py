import tempfile
import ray.train
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def train_func(config):
    saved_on_preemption = False
    for step in range(config["total_steps"]):
        preemption_info = ray.train.get_preemption_info()
        if preemption_info is not None and not saved_on_preemption:
            with tempfile.TemporaryDirectory() as d:
                ray.train.report({"step": step}, checkpoint=Checkpoint.from_directory(d))
            saved_on_preemption = True
    ray.train.report({"step": step})


TorchTrainer(
    train_func, train_loop_config={"total_steps": 5}, scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(failure_config=FailureConfig(max_preemption_failures=3)),
).fit()

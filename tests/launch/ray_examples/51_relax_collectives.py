import ray.train
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

run_config = RunConfig(failure_config=FailureConfig(max_preemption_failures=-1, relax_collectives_on_preemption=True, preemption_grace_s=30))
TorchTrainer(lambda: ray.train.report({"a": 1}), scaling_config=ScalingConfig(num_workers=2), run_config=run_config).fit()

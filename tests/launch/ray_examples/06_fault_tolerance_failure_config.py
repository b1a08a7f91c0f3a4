import ray.train
from ray.train.torch import TorchTrainer

run_config = ray.train.RunConfig(failure_config=ray.train.FailureConfig(max_failures=2))
unlimited = ray.train.RunConfig(failure_config=ray.train.FailureConfig(max_failures=-1))
trainer = TorchTrainer(lambda: ray.train.report({"a": 1}), run_config=run_config, scaling_config=ray.train.ScalingConfig(num_workers=2))
assert trainer.fit().metrics["a"] == 1

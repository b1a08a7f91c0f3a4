import os
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
import ray.train

run_config = RunConfig(name="my_train_run", storage_path=os.path.expanduser("~/results"))
result = TorchTrainer(lambda c: ray.train.report({"a": 1}), run_config=run_config, scaling_config=ScalingConfig(num_workers=2)).fit()
assert result.path.startswith(os.path.expanduser("~/results"))

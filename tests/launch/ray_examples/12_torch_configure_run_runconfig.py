import os
import ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

run_config = RunConfig(name="unique-run-name", storage_path=os.path.expanduser("~/shared"))
trainer = TorchTrainer(lambda: ray.train.report({"n": 1}), run_config=run_config, scaling_config=ScalingConfig(num_workers=2))
assert trainer.fit().path.rstrip("/").endswith("unique-run-name")

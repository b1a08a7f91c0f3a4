import ray.train
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

scaling_config = ScalingConfig(num_workers=2, use_gpu=False, resources_per_worker={"CPU": 1})
result = TorchTrainer(lambda c: ray.train.report({"n": ray.train.get_context().get_world_size()}), scaling_config=scaling_config).fit()
assert result.metrics["n"] == 2

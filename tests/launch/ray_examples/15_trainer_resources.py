import ray.train
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

scaling_config = ScalingConfig(num_workers=2, trainer_resources={"CPU": 1, "memory": 2 * 1024**3})
TorchTrainer(lambda: ray.train.report({"a": 1}), scaling_config=scaling_config).fit()

# expect when run: ScalingConfig.resources_per_worker["GPU"]=0.5: a rank has whole GPUs
import ray.train
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

scaling_config = ScalingConfig(num_workers=2, use_gpu=True, resources_per_worker={"GPU": 0.5})
TorchTrainer(lambda: ray.train.report({"a": 1}), scaling_config=scaling_config).fit()

# expect: ray.data has no counterpart in TrainJob
import ray
import ray.data
import ray.train
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

ds = ray.data.range(100)

# expect: datasets=['train']: there is no Ray Data here
import ray.train
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer


def train_func():
    shard = ray.train.get_dataset_shard("train")
    for batch in shard.iter_torch_batches(batch_size=4):
        ...


TorchTrainer(train_func, datasets={"train": [1, 2]}, scaling_config=ScalingConfig(num_workers=2)).fit()

import ray.train
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer


def train_fn_per_worker():
    if ray.train.get_context().get_local_rank() == 0:
        print("Local rank 0 worker")
    ray.train.report({"local": ray.train.get_context().get_local_rank()})
    return ray.train.get_context().get_local_rank()


open("locals", "w").close()
TorchTrainer(train_fn_per_worker, scaling_config=ScalingConfig(num_workers=2)).fit()

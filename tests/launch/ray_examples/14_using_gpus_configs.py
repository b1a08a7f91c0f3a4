import torch
from ray.train import ScalingConfig, RunConfig
from ray.train.torch import TorchTrainer, get_device, TorchConfig
import ray.train

use_gpu = torch.cuda.is_available()
scaling_config = ScalingConfig(num_workers=2, use_gpu=use_gpu)


def train_func():
    device = get_device()
    assert device.type in ("cpu", "cuda")
    assert ray.train.torch.get_devices() == [device]
    ray.train.report({"device": str(device)})


TorchTrainer(train_func, scaling_config=scaling_config, torch_config=TorchConfig(backend="gloo")).fit()

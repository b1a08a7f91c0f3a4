"""`ray.train.torch` by TrainJob's own names."""

from __future__ import annotations

from trainjob.compat.absent import names

_OURS = "TorchConfig TorchTrainer enable_reproducibility get_device get_devices prepare_data_loader prepare_model"
_HOMES = dict.fromkeys(_OURS.split(), "trainjob.torch")
_HINTS = {
    "accelerate": "use torch.autocast and a GradScaler in the loop, around the model of ray.train.torch.prepare_model",
    "prepare_optimizer": "use the optimizer as it is, made after ray.train.torch.prepare_model",
    "backward": "call loss.backward()",
    "TorchCheckpoint": "the nearest thing is ray.train.Checkpoint.from_directory, with torch.save",
    "TorchWorkerProfiler": "use torch.profiler",
    "get_torch_device": "the nearest thing is ray.train.torch.get_device",
}
__getattr__ = names("ray.train.torch", _HOMES, _HINTS)

"""What a training loop needs around PyTorch: model and data preparation, devices, reproducibility, sharded checkpoints.

Called by user code through `trainjob` or as `trainjob.torch` (Ray's `ray.train.torch`). torch itself is imported inside
the functions, when they are used. Everything that knows torch lives here; the session knows nothing of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Dict, List

from trainjob.session import unknown_name

if TYPE_CHECKING:
    from trainjob.launch import TorchConfig, TorchTrainer
    from trainjob.torch.device import get_device, get_devices
    from trainjob.torch.global_batch import GlobalBatch
    from trainjob.torch.group import init_process_group
    from trainjob.torch.loader import prepare_data_loader
    from trainjob.torch.model import prepare_model
    from trainjob.torch.reproducible import enable_reproducibility
    from trainjob.torch.shard_reader import ShardReader
    from trainjob.torch.shard_writer import ShardWriter
    from trainjob.torch.sharded import load_sharded, save_sharded

__all__ = [
    "GlobalBatch",
    "ShardReader",
    "ShardWriter",
    "TorchConfig",
    "TorchTrainer",
    "enable_reproducibility",
    "get_device",
    "get_devices",
    "init_process_group",
    "load_sharded",
    "prepare_data_loader",
    "prepare_model",
    "save_sharded",
]

_HOME: Dict[str, str] = {
    "get_device": "trainjob.torch.device",
    "get_devices": "trainjob.torch.device",
    "init_process_group": "trainjob.torch.group",
    "prepare_data_loader": "trainjob.torch.loader",
    "GlobalBatch": "trainjob.torch.global_batch",
    "prepare_model": "trainjob.torch.model",
    "enable_reproducibility": "trainjob.torch.reproducible",
    "save_sharded": "trainjob.torch.sharded",
    "load_sharded": "trainjob.torch.sharded",
    "ShardWriter": "trainjob.torch.shard_writer",
    "ShardReader": "trainjob.torch.shard_reader",
    "TorchConfig": "trainjob.launch",
    "TorchTrainer": "trainjob.launch",
}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise unknown_name.error(__name__, name, __all__)
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> List[str]:
    return sorted({*globals(), *__all__})

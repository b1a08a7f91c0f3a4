import os
import ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


class LocalFileSystem:  # stands for pyarrow.fs.LocalFileSystem where pyarrow is not installed
    type_name = "local"


try:
    from pyarrow.fs import LocalFileSystem
except ImportError:
    pass

path = os.path.expanduser("~/fs")
run_config = RunConfig(storage_path=path, storage_filesystem=LocalFileSystem(), name="x")
result = TorchTrainer(lambda: ray.train.report({"a": 1}), scaling_config=ScalingConfig(num_workers=2), run_config=run_config).fit()
assert result.path.startswith(path)

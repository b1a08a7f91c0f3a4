import os
import ray.train
from ray.train import Checkpoint

try:
    from pyarrow.fs import LocalFileSystem
except ImportError:

    class LocalFileSystem:
        type_name = "local"


os.makedirs("ckpt", exist_ok=True)
open("ckpt/f", "w").close()
checkpoint = Checkpoint(os.path.abspath("ckpt"), filesystem=LocalFileSystem())
with checkpoint.as_directory() as d:
    assert os.listdir(d) == ["f"]

"""Local rank 0 downloads to the machine's temporary folder, all ranks read it, and a restart finds it again."""

import os
import sys
import tempfile

from trainjob import FailureConfig, RunConfig, ScalingConfig, report
from trainjob.compat import ray
from trainjob.torch import TorchTrainer


def train_func():
    context = ray.train.get_context()
    rank = context.get_world_rank()
    assert (context.get_local_rank(), context.get_local_world_size(), context.get_node_rank()) == (rank, 2, 0)
    assert (os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"]) == (str(rank), "2")
    data, first = os.path.join(tempfile.gettempdir(), "data"), context.get_attempt() == 1
    if first and context.get_local_rank() == 0:
        os.mkdir(data)
        for name in ("images", "labels"):
            open(os.path.join(data, name), "w").close()
    ray.train.collective.barrier()
    tempfile.mkdtemp(prefix="unfinished-")  # as a rank that dies while it saves leaves it
    unfinished = [name for name in os.listdir(tempfile.gettempdir()) if name.startswith("unfinished-")]
    report({"files": len(os.listdir(data)), "unfinished": len(unfinished)})
    if first and rank == 1:
        raise OSError("the network is down")


if __name__ == "__main__":
    result = TorchTrainer(
        train_func,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=sys.argv[1], failure_config=FailureConfig(max_failures=1)),
    ).fit()
    assert result.metrics["files"] == 2, result.metrics
    assert result.metrics["unfinished"] <= 2, "what the ranks before left is still there"

"""Reads its place from the variables that torchrun sets, checks them, and cleans the environment for its children."""

import os
import subprocess

from tiny import Net, train

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
local_rank = int(os.environ["LOCAL_RANK"])
assert os.environ["MASTER_ADDR"] and int(os.environ["MASTER_PORT"]) and 0 <= local_rank <= rank < world_size
net = Net()
for name in list(os.environ):
    if name.startswith(("TRAINJOB_", "MASTER_", "PYTHON")) and not name.startswith("TRAINJOB_TEST_FAULTS"):
        kept = os.environ.pop(name)
        if name == "TRAINJOB_ATTEMPT":
            os.environ[name] = kept
subprocess.run(["env"], stdout=subprocess.DEVNULL, check=True)
train(net)

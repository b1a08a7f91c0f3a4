"""A tiny DDP loop for a cluster: says on standard output when it got where, in seconds since the epoch.

rank 0 attempt 1 began|imported|joined at T      rank 0 attempt 1 step 3 at T
"""

import time

BEGAN = time.time()

import os  # noqa: E402 - the clock comes first

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import trainjob  # noqa: E402

IMPORTED = time.time()


def say(what: str, at: float) -> None:
    print(f"rank {os.environ['RANK']} attempt {os.environ['TRAINJOB_ATTEMPT']} {what} at {at:.3f}", flush=True)


def main() -> None:
    torch.set_num_threads(1)
    trainjob.init_process_group()
    joined = time.time()
    for what, at in (("began", BEGAN), ("imported", IMPORTED), ("joined", joined)):
        say(what, at)
    model = DistributedDataParallel(nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(32, 64)
    for step in range(10_000):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        trainjob.report({"step": step}, step=step)
        say(f"step {step}", time.time())
        time.sleep(0.2)


if __name__ == "__main__":
    main()

"""A tiny DDP loop for a cluster: says on standard output when it got where, in seconds since the epoch.

rank 0 attempt 1 began|imported|joined at T      rank 0 attempt 1 step 3 at T

Under another launcher it joins as torch has it and reports nothing; a process' beginning in milliseconds stands for the
attempt then.
"""

import time

BEGAN = time.time()

import os  # noqa: E402 - the clock comes first

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

OURS = "TRAINJOB_ATTEMPT" in os.environ
if OURS:
    import trainjob

IMPORTED = time.time()
ATTEMPT = os.environ["TRAINJOB_ATTEMPT"] if OURS else round(1000 * BEGAN)


def say(what: str, at: float) -> None:
    print(f"rank {os.environ['RANK']} attempt {ATTEMPT} {what} at {at:.3f}", flush=True)


def main() -> None:
    torch.set_num_threads(1)
    if OURS:
        trainjob.init_process_group()
    else:
        torch.distributed.init_process_group("gloo")
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
        if OURS:
            trainjob.report({"step": step}, step=step)
        say(f"step {step}", time.time())
        time.sleep(0.2)


if __name__ == "__main__":
    main()

"""Times report(), barrier(), gloo's barrier and log() on 2 ranks in turns; rank 0 writes its samples to the file
given.
"""

import json
import sys
import time

import torch.distributed as dist

import trainjob

WARM_UP = 100
BLOCKS = 10
CALLS = 100
LOG_CALLS = 1000


def timed(call) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def main(out: str) -> None:
    dist.init_process_group("gloo")
    rank = trainjob.get_context().get_world_rank()
    metrics = {"loss": 0.1, "accuracy": 0.9}
    calls = {
        "report_ms": lambda: trainjob.report(metrics),
        "barrier_ms": trainjob.barrier,
        "gloo_ms": dist.barrier,
    }
    samples = {name: [] for name in (*calls, "log_us")}
    for call in calls.values():
        for _ in range(WARM_UP):
            call()
    for _ in range(BLOCKS):
        for name, call in calls.items():
            samples[name] += [timed(call) * 1e3 for _ in range(CALLS)]
        begun = time.perf_counter()
        for step in range(LOG_CALLS):
            trainjob.log(metrics, step=step)
        samples["log_us"].append((time.perf_counter() - begun) / LOG_CALLS * 1e6)
    if rank == 0:
        with open(out, "w") as file:
            json.dump(samples, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])

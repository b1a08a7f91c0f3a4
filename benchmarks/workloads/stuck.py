"""Steps of an all_reduce and a report(), noted as `rank pid attempt step time`; from step STUCK_AT on rank 1 makes no
all_reduce any more, and the others wait for it.

Arguments: the file to note in.
"""

import os
import sys
import time

import torch
import torch.distributed as dist

import trainjob

STUCK_AT = 60
STEP_S = 0.1


def main(notes: str) -> None:
    dist.init_process_group("gloo")
    rank, step = dist.get_rank(), 0
    file = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    while True:
        step += 1
        time.sleep(STEP_S)
        if rank != 1 or step < STUCK_AT:
            dist.all_reduce(torch.ones(8))
        os.write(file, f"{rank} {os.getpid()} 1 {step} {time.time():.6f}\n".encode())
        trainjob.report({"step": step}, step=step)


if __name__ == "__main__":
    main(sys.argv[1])

"""A thread of gloo's is busy with Python when a group is destroyed with its model, or at exit.

loop_gloo.py destroy|exit
"""

from __future__ import annotations

import gc
import sys
import threading
import time

import torch
import torch.distributed as dist
import torch.distributed.nn  # later, defaults of its functions would hold the group for good

BUSY_S = 0.1
"""Of its own processor: the others get theirs in between, however slow the machine is."""
MAIN = threading.get_ident()


class Held:
    """What a collective's tensor holds: its end is a piece of work in Python."""

    def __init__(self, began: threading.Event) -> None:
        self._began = began

    def __del__(self) -> None:
        if threading.get_ident() != MAIN and not self._began.is_set():
            self._began.set()
            threading.current_thread()  # as logging does: from now on Python counts this among its own
            until = time.thread_time() + BUSY_S
            while time.thread_time() < until:
                pass


def let_a_thread_be_busy() -> None:
    """Until gloo's thread, and not this one, was the last to drop a tensor."""
    began = threading.Event()
    while not began.wait(0.01):
        tensor = torch.ones(1 << 12)
        tensor.held = Held(began)
        dist.all_reduce(tensor, async_op=True)
        del tensor


dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
gc.collect()
gc.freeze()  # a collection has little to look at below: the thread is busy for longer
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
let_a_thread_be_busy()
if "exit" not in sys.argv:
    dist.destroy_process_group()
    del model
    gc.collect()  # it is part of a cycle
print("ends", flush=True)

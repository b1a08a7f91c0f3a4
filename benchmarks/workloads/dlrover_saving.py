"""The saves of saving.py with DLRover's Flash Checkpoint, one rank; run by a Python that has DLRover and torch.

dlrover_saving.py NOTES ROUNDS BYTES STORAGE

A save copies the state into memory that stays between saves, and DLRover's agent stores it meanwhile. The next one
comes when that is done, as with all others.
"""

import json
import sys
import time

import torch
import torch.distributed as dist
from dlrover.python.common.storage import KeepLatestStepStrategy
from dlrover.trainer.torch.flash_checkpoint.checkpointer import StorageType
from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer


def saved(checkpointer: DdpCheckpointer, step: int, state: dict) -> float:
    """Seconds of the call that has saved: one that comes while the agent still holds the memory saves nothing."""
    while True:
        begun = time.perf_counter()
        checkpointer.save_checkpoint(step, state, storage_type=StorageType.DISK)
        blocked = time.perf_counter() - begun
        if checkpointer._engine.latest_step == step:
            return blocked
        time.sleep(0.05)


def main(notes: str, rounds: str, size: str, storage: str) -> None:
    dist.init_process_group("gloo")
    state = {"weights": torch.arange(int(size) // 4, dtype=torch.float32)}
    checkpointer = DdpCheckpointer(storage, deletion_strategy=KeepLatestStepStrategy(1, storage))
    for number in range(-1, int(rounds)):
        blocked = saved(checkpointer, number + 2, state)
        checkpointer.wait_latest_checkpoint()
        if number >= 0:  # the first one makes the memory
            with open(notes, "a") as file:
                print(json.dumps({"way": "dlrover", "blocked": blocked}), file=file, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])

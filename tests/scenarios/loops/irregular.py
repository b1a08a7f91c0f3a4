"""Steps of two ranks that take tenfold longer at one time than at another, and now and then something that stands still
for seconds without being a hang. Arguments: the notes folder, and for how many seconds.
"""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import trainjob

USUAL_S = 0.05
EVERY_S = 20.0


def holds_the_interpreter() -> None:
    """One call into C that lets no other thread of Python run: its processor time goes on."""
    pow(3, 11_000_000)


def pickles_much() -> None:
    """The same as people have it."""
    pickle.dumps([(number, str(number)) for number in range(2_000_000)])


def sleeps() -> None:
    """A loader that waits for a far disk."""
    time.sleep(8)


def reads_from_a_slow_disk() -> None:
    """A piece now and then, for eight seconds."""
    slowly = "for piece in $(seq 20); do sleep 0.4; echo piece; done"
    with subprocess.Popen(["sh", "-c", slowly], stdout=subprocess.PIPE, bufsize=0) as disk:
        assert disk.stdout is not None
        while disk.stdout.read(16):
            pass


ODD = (holds_the_interpreter, pickles_much, sleeps, reads_from_a_slow_disk)


def main(notes: Path, seconds: float) -> None:
    dist.init_process_group("gloo")
    rank, chance = dist.get_rank(), random.Random(dist.get_rank())
    found = trainjob.get_checkpoint()
    step = found.to_dict()["step"] + 1 if found else 0
    until = notes / "until"
    if rank == 0 and not until.exists():
        until.write_text(str(time.time() + seconds))
    odd_at, odd = time.monotonic() + EVERY_S, 0
    going_on = torch.ones(1)
    while going_on.item():
        time.sleep(USUAL_S * 10 ** chance.uniform(-0.5, 0.5))
        if time.monotonic() >= odd_at and rank == odd % 2:
            ODD[odd // 2 % len(ODD)]()
        if time.monotonic() >= odd_at:
            odd_at, odd = time.monotonic() + EVERY_S, odd + 1
        if rank == 0:
            going_on[0] = time.time() < float(until.read_text())
        dist.all_reduce(torch.ones(1000))
        dist.broadcast(going_on, 0)
        if step % 20 == 0:
            trainjob.report({"step": step}, checkpoint=trainjob.Checkpoint.from_dict({"step": step}), step=step)
        step += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))

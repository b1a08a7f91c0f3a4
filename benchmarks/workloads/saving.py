"""One rank that saves the same state in every way in turn, and writes a JSON line for each save.

    saving.py NOTES ROUNDS BYTES MOUNTED CHECKPOINTS

MOUNTED is a folder beside the job's storage, for those who save there themselves; CHECKPOINTS is where ours appear.
"""

import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import trainjob
from trainjob.torch import save_sharded

POLL_S = 0.002
PATIENCE_S = 300.0
TICKS = os.sysconf("SC_CLK_TCK")
saved = 0


def processes() -> dict[str, int]:
    """The agent's pid and its storage child's."""
    agent = os.getppid()
    found = {"agent": agent}
    for name in Path(f"/proc/{agent}/task/{agent}/children").read_text().split():
        if b"trainjob.checkpoint.storage_child.child" in Path(f"/proc/{name}/cmdline").read_bytes():
            found["child"] = int(name)
    return found


def cpu() -> float:
    """Seconds that both have used."""
    total = 0
    for pid in processes().values():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def peaks() -> dict[str, float]:
    """The most memory that each has had, MiB."""
    found = {}
    for name, pid in processes().items():
        line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
        found[name] = int(line.split()[1]) / 1024
    return found


def timed(call) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def until_durable(checkpoints: Path) -> None:
    """What was reported just now."""
    global saved
    saved += 1
    manifest, deadline = checkpoints / f"1-1-{saved}" / ".trainjob" / "manifest.json", time.monotonic() + PATIENCE_S
    while not manifest.exists():
        if time.monotonic() > deadline:
            raise SystemExit(f"{manifest} did not come")
        time.sleep(POLL_S)


def ours(state, checkpoints: Path, move: bool) -> dict:
    """torch.save into a folder, report(), and until the manifest is there."""
    folder = tempfile.mkdtemp()
    if not move:
        # A folder that the script keeps: its files are copied.
        folder = tempfile.mkdtemp(dir=checkpoints.parents[2])
    written = timed(lambda: torch.save(state, os.path.join(folder, "state.pt")))
    handle, before = trainjob.Checkpoint.from_directory(folder), cpu()
    begun = time.perf_counter()
    trainjob.report({"loss": 0.1}, checkpoint=handle, delete_local_checkpoint_after_upload=move)
    blocked = time.perf_counter() - begun
    until_durable(checkpoints)
    durable = time.perf_counter() - begun
    used = cpu() - before
    shutil.rmtree(folder, ignore_errors=True)
    return {
        "write": written,
        "blocked": blocked,
        "durable": durable,
        "cpu": used,
        **{f"peak_{name}": value for name, value in peaks().items()},
    }


def in_a_row(make, state, checkpoints: Path) -> dict:
    """`make` of the state, and report(): the third of three, as all that follow in a job that saves so."""
    for _ in range(3):
        blocked = timed(lambda: trainjob.report({"loss": 0.1}, checkpoint=make(state)))
        until_durable(checkpoints)
    return {"blocked": blocked}


def mounted(state, folder: Path) -> dict:
    """torch.save to the mounted folder, and fsync."""
    path = folder / "state.pt"
    begun = time.perf_counter()
    torch.save(state, path)
    blocked = time.perf_counter() - begun
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    durable = time.perf_counter() - begun
    path.unlink()
    return {"blocked": blocked, "durable": durable}


def dcp_async(state, folder: Path) -> dict:
    """torch.distributed.checkpoint's own asynchronous save to the mounted folder."""
    begun = time.perf_counter()
    future = dcp.async_save(state, checkpoint_id=str(folder / "dcp"))
    blocked = time.perf_counter() - begun
    future.result()
    durable = time.perf_counter() - begun
    shutil.rmtree(folder / "dcp")
    return {"blocked": blocked, "durable": durable}


def copy(state) -> dict:
    """One memory copy into memory that was not used before, as a staged one must be."""
    copies = []
    return {"blocked": timed(lambda: copies.append(state["weights"].clone()))}


def file_copy(state, folder: Path) -> dict:
    """One copy of the saved file into a file that was not there before, by the standard library."""
    torch.save(state, folder / "state.pt")
    took = timed(lambda: shutil.copyfile(folder / "state.pt", folder / "copy.pt"))
    (folder / "state.pt").unlink()
    (folder / "copy.pt").unlink()
    return {"blocked": took}


def main(notes: str, rounds: str, size: str, folder: str, checkpoints: str) -> None:
    dist.init_process_group("gloo")
    state, place, ckpt = {"weights": torch.arange(int(size) // 4, dtype=torch.float32)}, Path(folder), Path(checkpoints)
    ways = {
        "copy": lambda: copy(state),
        "moved": lambda: ours(state, ckpt, move=True),
        "copied": lambda: ours(state, ckpt, move=False),
        "dict": lambda: in_a_row(trainjob.Checkpoint.from_dict, state, ckpt),
        "sharded": lambda: in_a_row(save_sharded, state, ckpt),
        "file": lambda: file_copy(state, place),
        "mounted": lambda: mounted(state, place),
        "dcp": lambda: dcp_async(state, place),
    }
    with open(notes, "a") as file:
        for number in range(-1, int(rounds)):
            for name, way in ways.items():
                sample = way()
                if number >= 0:  # the first round warms up
                    print(json.dumps({"way": name, **sample}), file=file, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])

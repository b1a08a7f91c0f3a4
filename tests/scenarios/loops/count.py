"""A training loop without torch: counts, saves, reports, and notes what was acknowledged to it.

    count.py NOTES [--steps N] [--pause S] [--every N] [--score S,S,...] [--mode ASYNC|SYNC] [--hold STEP]

Each rank appends `attempt step level` to NOTES/rank-<r> after each report() that carried a checkpoint, in one write, so
that the note is there even if the rank is killed right after it. At its start it notes where it resumed. With --hold it
waits before that step until NOTES/go exists.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time

from support import faults

faults.point(faults.IMPORT)

import trainjob  # noqa: E402 - the fault point comes first


def note(folder: str, rank: int, text: str) -> None:
    descriptor = os.open(os.path.join(folder, f"rank-{rank}"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{text} {time.time()} {os.environ['TRAINJOB_POD_UID']}\n".encode())
    os.close(descriptor)


def restored(rank: int) -> int:
    checkpoint = trainjob.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        for path in (f"part-{rank}", f"more-{rank}"):
            with open(os.path.join(folder, path)) as file:
                step = int(file.read().split()[0])
    return step + 1


def save(folder: str, rank: int, step: int) -> None:
    for path in (f"part-{rank}", f"more-{rank}"):
        with open(os.path.join(folder, path), "w") as file:
            file.write(f"{step} " + "x" * 20_000)
        faults.point(faults.SAVE, step)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("notes")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--score", default="")
    parser.add_argument("--mode", default="ASYNC")
    parser.add_argument("--hold", type=int)
    args = parser.parse_args()
    context = trainjob.get_context()
    rank, attempt = context.get_world_rank(), context.get_attempt()
    start = restored(rank)
    note(args.notes, rank, f"{attempt} start {start}")
    scores = [float(word) for word in args.score.split(",") if word]
    for step in range(start, args.steps):
        faults.point(faults.STEP, step)
        time.sleep(args.pause)
        while step == args.hold and not os.path.exists(os.path.join(args.notes, "go")):
            time.sleep(0.02)
        metrics = {"step": step, "rank": rank, "score": scores[step] if scores else step}
        if (step + 1) % args.every:
            faults.point(faults.REPORT, step)
            trainjob.report(metrics, step=step, total_steps=args.steps)
            continue
        with tempfile.TemporaryDirectory() as folder:
            save(folder, rank, step)
            faults.point(faults.REPORT, step)
            trainjob.report(
                metrics,
                checkpoint=trainjob.Checkpoint.from_directory(folder),
                checkpoint_upload_mode=args.mode,
                step=step,
                total_steps=args.steps,
            )
        note(args.notes, rank, f"{attempt} saved {step}")
    faults.point(faults.END)
    if rank == 0:
        time.sleep(args.pause)
        print("rank 0 evaluates", flush=True)


if __name__ == "__main__":
    main()

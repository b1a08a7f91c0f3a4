"""Hooks at exit: one writes a summary, one raises, one waits for a writer thread; sys.exit(main()) as people write it."""

import atexit
import json
import queue
import sys
import threading

from tiny import STEPS, Net

import trainjob

rows = queue.Queue()


def write_rows():
    while (row := rows.get()) is not None:
        with open(f"rows-{trainjob.get_context().get_world_rank()}.jsonl", "a") as file:
            file.write(json.dumps(row) + "\n")


writer = threading.Thread(target=write_rows)  # not a daemon: it must be told to end


@atexit.register
def summary():
    print("summary written", flush=True)


@atexit.register
def broken():
    raise ValueError("an old logger's hook that nobody repaired")


def main():
    writer.start()
    try:
        net = Net()
        if checkpoint := trainjob.get_checkpoint():
            net.load(checkpoint.to_dict())
        for step in range(net.done, STEPS):
            loss = net.train_step(step)
            rows.put({"step": step, "loss": loss})
            trainjob.report({"loss": loss}, checkpoint=trainjob.Checkpoint.from_dict(net.state()), step=step + 1)
        net.finish()
    finally:
        rows.put(None)
        writer.join()


if __name__ == "__main__":
    sys.exit(main())

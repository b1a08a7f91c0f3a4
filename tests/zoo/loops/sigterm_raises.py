"""A handler that raises SystemExit, and a finally that cleans up and prints."""

import signal
import sys
import time

from tiny import STEPS, Net

import trainjob


def leave(number, frame):
    raise SystemExit(128 + number)


def main():
    signal.signal(signal.SIGTERM, leave)
    net = Net()
    try:
        if checkpoint := trainjob.get_checkpoint():
            net.load(checkpoint.to_dict())
        for step in range(net.done, STEPS):
            loss = net.train_step(step)
            trainjob.report({"loss": loss}, checkpoint=trainjob.Checkpoint.from_dict(net.state()), step=step + 1)
        net.finish()
    finally:
        time.sleep(0.05)
        print("closing the data set", file=sys.stderr)


if __name__ == "__main__":
    main()

"""A handler that raises SystemExit, and a finally that cleans up and prints."""

import signal
import sys
import time

from tiny import Net, train


def leave(number, frame):
    raise SystemExit(128 + number)


def main():
    signal.signal(signal.SIGTERM, leave)
    net = Net()
    try:
        train(net)
    finally:
        time.sleep(0.05)
        print("closing the data set", file=sys.stderr)


if __name__ == "__main__":
    main()

"""A monitor that is forked twice, becomes a session of its own, closes its descriptors and outlives the script."""

import os
import time

from tiny import Net, train


def monitor():
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    os.closerange(0, 256)
    while True:
        time.sleep(1)


monitor()
train(Net())

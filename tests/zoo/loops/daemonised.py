"""A monitor that is forked twice, becomes a session of its own, closes its descriptors and outlives the script."""

import os
import time

from tiny import STEPS, Net

import trainjob


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
net = Net()
if checkpoint := trainjob.get_checkpoint():
    net.load(checkpoint.to_dict())
for step in range(net.done, STEPS):
    loss = net.train_step(step)
    trainjob.report({"loss": loss}, checkpoint=trainjob.Checkpoint.from_dict(net.state()), step=step + 1)
net.finish()

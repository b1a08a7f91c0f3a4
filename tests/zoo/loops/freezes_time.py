"""Clocks that stand still, as freezegun makes them, and all descriptors closed under them."""

import os
import time

from tiny import STEPS, Net

import trainjob

net = Net()
if checkpoint := trainjob.get_checkpoint():
    net.load(checkpoint.to_dict())
for name in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter"):
    setattr(time, name, lambda: 0)
for step in range(net.done, STEPS):
    if step % 3 == 2:
        os.closerange(3, 4096)
    loss = net.train_step(step)
    trainjob.report({"loss": loss}, checkpoint=trainjob.Checkpoint.from_dict(net.state()), step=step + 1)
net.finish()

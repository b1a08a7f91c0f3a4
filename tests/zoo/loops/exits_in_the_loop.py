"""Runs for ever, and leaves with sys.exit(0) from inside the loop when enough is done."""

import itertools
import sys

from tiny import STEPS, Net

import trainjob

net = Net()
if checkpoint := trainjob.get_checkpoint():
    net.load(checkpoint.to_dict())
for step in itertools.count(net.done):
    if step >= STEPS:
        net.finish()
        sys.exit(0)
    loss = net.train_step(step)
    trainjob.report({"loss": loss}, checkpoint=trainjob.Checkpoint.from_dict(net.state()), step=step + 1)

"""Closes all descriptors but the standard ones before each step, as programs do that make daemons."""

import os

from tiny import STEPS, Net

import trainjob

net = Net()
if checkpoint := trainjob.get_checkpoint():
    net.load(checkpoint.to_dict())
for step in range(net.done, STEPS):
    os.closerange(3, 4096)
    loss = net.train_step(step)
    trainjob.report({"loss": loss}, checkpoint=trainjob.Checkpoint.from_dict(net.state()), step=step + 1)
net.finish()

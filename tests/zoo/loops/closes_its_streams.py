"""Closes its standard streams, as objects and as descriptors; what it opens next gets their numbers."""

import os
import sys

from tiny import STEPS, Net

import trainjob

for stream in (sys.stdin, sys.stdout, sys.stderr):
    stream.close()
files = [open(f"taken-{os.environ['RANK']}-{number}", "w") for number in range(3)]
net = Net()
if checkpoint := trainjob.get_checkpoint():
    net.load(checkpoint.to_dict())
for step in range(net.done, STEPS):
    loss = net.train_step(step)
    trainjob.report({"loss": loss}, checkpoint=trainjob.Checkpoint.from_dict(net.state()), step=step + 1)
net.finish()

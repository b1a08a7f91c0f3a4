"""Works in a folder that it has removed."""

import os
import tempfile

from tiny import STEPS, Net

import trainjob

folder = tempfile.mkdtemp()
os.chdir(folder)
os.rmdir(folder)
net = Net()
if checkpoint := trainjob.get_checkpoint():
    net.load(checkpoint.to_dict())
for step in range(net.done, STEPS):
    loss = net.train_step(step)
    trainjob.report({"loss": loss}, checkpoint=trainjob.Checkpoint.from_dict(net.state()), step=step + 1)
net.finish()

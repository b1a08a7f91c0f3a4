"""Limits of its own: small files, few descriptors, hardly any more memory, the lowest priority."""

import os
import resource

from tiny import STEPS, Net

import trainjob

os.nice(19)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
net = Net()
if checkpoint := trainjob.get_checkpoint():
    net.load(checkpoint.to_dict())
for step in range(net.done, STEPS):
    loss = net.train_step(step)
    trainjob.report({"loss": loss}, checkpoint=trainjob.Checkpoint.from_dict(net.state()), step=step + 1)
net.finish()

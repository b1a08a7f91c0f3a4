"""Makes itself a session and process group of its own, lowers its limits and its priority, has a private umask."""

import os
import resource

from tiny import STEPS, Net

import trainjob

if os.getpid() != os.getsid(0):
    try:
        os.setsid()
    except PermissionError:
        os.setpgrp()
os.nice(1)
os.umask(0o077)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

net = Net()
if checkpoint := trainjob.get_checkpoint():
    net.load(checkpoint.to_dict())
for step in range(net.done, STEPS):
    loss = net.train_step(step)
    trainjob.report({"loss": loss}, checkpoint=trainjob.Checkpoint.from_dict(net.state()), step=step + 1)
net.finish()

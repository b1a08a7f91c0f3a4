"""Rank 0 evaluates, which takes a while, and the others wait in a barrier; a socket default time-out is set."""

import socket
import time

from tiny import STEPS, Net

import trainjob

socket.setdefaulttimeout(0.05)  # for a download, years ago

net = Net()
if checkpoint := trainjob.get_checkpoint():
    net.load(checkpoint.to_dict())
for step in range(net.done, STEPS):
    loss = net.train_step(step)
    metrics = {"loss": loss}
    if trainjob.get_context().get_world_rank() == 0 and step % 4 == 1:
        time.sleep(0.2)
        metrics["accuracy"] = 1 - loss
    trainjob.barrier()
    trainjob.report(metrics, checkpoint=trainjob.Checkpoint.from_dict(net.state()), step=step + 1)
if trainjob.get_context().get_world_rank() == 0:
    time.sleep(0.2)
net.finish()

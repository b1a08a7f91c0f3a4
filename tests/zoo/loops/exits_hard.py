"""os._exit(0) at the end, because some thread of some library hangs at a clean one; log() right before it."""

import os
import threading

from tiny import STEPS, Net

import trainjob

threading.Thread(target=threading.Event().wait).start()  # this is the one that hangs

try:
    net = Net()
    if checkpoint := trainjob.get_checkpoint():
        net.load(checkpoint.to_dict())
    for step in range(net.done, STEPS):
        loss = net.train_step(step)
        trainjob.report({"loss": loss}, checkpoint=trainjob.Checkpoint.from_dict(net.state()), step=step + 1)
    net.finish()
except BaseException:
    import traceback

    traceback.print_exc()
    os._exit(1)
os._exit(0)

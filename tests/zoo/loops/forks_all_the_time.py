"""A thread forks all the time, also in the middle of report(); each child lives for a moment."""

import os
import threading
import time

from tiny import STEPS, Net

import trainjob

over = threading.Event()


def fork():
    while not over.is_set():
        pid = os.fork()
        if pid == 0:
            time.sleep(0.01)
            os._exit(0)
        os.waitpid(pid, 0)


forking = threading.Thread(target=fork)
forking.start()
try:
    net = Net()
    if checkpoint := trainjob.get_checkpoint():
        net.load(checkpoint.to_dict())
    for step in range(net.done, STEPS):
        loss = net.train_step(step)
        trainjob.report({"loss": loss}, checkpoint=trainjob.Checkpoint.from_dict(net.state()), step=step + 1)
    net.finish()
finally:
    over.set()
    forking.join()

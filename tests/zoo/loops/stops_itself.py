"""Each rank is stopped for a while (SIGSTOP) in the middle of its work, and continued by a child."""

import os
import signal
import time

from tiny import STEPS, Net

import trainjob

net = Net()
if checkpoint := trainjob.get_checkpoint():
    net.load(checkpoint.to_dict())
for step in range(net.done, STEPS):
    if step % 4 == 3:
        waker = os.fork()
        if waker == 0:
            while open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()[0] != "T":
                time.sleep(0.01)
            time.sleep(1)
            os.kill(os.getppid(), signal.SIGCONT)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGSTOP)
        os.waitpid(waker, 0)
    loss = net.train_step(step)
    trainjob.report({"loss": loss}, checkpoint=trainjob.Checkpoint.from_dict(net.state()), step=step + 1)
net.finish()

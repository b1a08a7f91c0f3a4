"""Takes stdout away: descriptor 1 goes into a file, sys.stdout becomes a tee, excepthook is its own, descriptor 0 is
closed.
"""

import os
import sys
import traceback

from tiny import STEPS, Net

import trainjob


class Tee:
    def __init__(self, *files):
        self.files = files

    def write(self, text):
        for file in self.files:
            file.write(text)

    def flush(self):
        for file in self.files:
            file.flush()


def hook(kind, error, trace):
    with open(f"crash-{os.environ['RANK']}.txt", "w") as file:
        traceback.print_exception(kind, error, trace, file=file)


log = open(f"out-{os.environ['RANK']}.log", "a")
os.dup2(log.fileno(), 1)
os.close(0)
sys.stdout = Tee(log, sys.__stderr__)
sys.excepthook = hook

net = Net()
if checkpoint := trainjob.get_checkpoint():
    net.load(checkpoint.to_dict())
for step in range(net.done, STEPS):
    loss = net.train_step(step)
    print("step", step, loss)
    trainjob.report({"loss": loss}, checkpoint=trainjob.Checkpoint.from_dict(net.state()), step=step + 1)
net.finish()

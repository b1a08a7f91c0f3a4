"""A handler that sets a flag; the loop leaves with 0 after the next save. (Signals come to the ranks at different steps: one
that saved at once would pair its step with another step of the other rank's.)
"""

import signal
import sys

from tiny import STEPS, Net

import trainjob

stop_requested = False


def request_stop(number, frame):
    global stop_requested
    print(f"got {signal.Signals(number).name}, finishing the step", flush=True)
    stop_requested = True


signal.signal(signal.SIGTERM, request_stop)
signal.signal(signal.SIGINT, request_stop)

net = Net()
if checkpoint := trainjob.get_checkpoint():
    net.load(checkpoint.to_dict())
for step in range(net.done, STEPS):
    loss = net.train_step(step)
    if step % 2:
        trainjob.report({"loss": loss}, checkpoint=trainjob.Checkpoint.from_dict(net.state()), step=step + 1)
        if stop_requested:
            sys.exit(0)
net.finish()

"""Its last step, and the report of it, are a hook at exit."""

import atexit

from tiny import STEPS, Net

import trainjob

net = Net()


def step_and_report(step):
    loss = net.train_step(step)
    trainjob.report({"loss": loss}, checkpoint=trainjob.Checkpoint.from_dict(net.state()), step=step + 1)


@atexit.register
def last():
    if net.done == STEPS - 1:
        step_and_report(STEPS - 1)
    net.finish()


if checkpoint := trainjob.get_checkpoint():
    net.load(checkpoint.to_dict())
for step in range(net.done, STEPS - 1):
    step_and_report(step)

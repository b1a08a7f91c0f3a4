"""A watchdog by SIGALRM that raises when a step takes too long, and an interval timer that logs from its handler."""

import signal

from tiny import STEPS, Net

import trainjob


class StepTimeout(Exception):
    pass


def too_long(number, frame):
    raise StepTimeout("the step took more than a minute")


ticks = 0


def tick(number, frame):
    global ticks
    ticks += 1


signal.signal(signal.SIGALRM, too_long)
signal.signal(signal.SIGVTALRM, tick)
signal.setitimer(signal.ITIMER_VIRTUAL, 0.001, 0.001)

net = Net()
if checkpoint := trainjob.get_checkpoint():
    net.load(checkpoint.to_dict())
for step in range(net.done, STEPS):
    signal.alarm(60)
    loss = net.train_step(step)
    for _ in range(3000):  # some work, so that the timer fires in the middle of things
        trainjob.log({"loss": loss}, step=step)
    trainjob.report({"loss": loss}, checkpoint=trainjob.Checkpoint.from_dict(net.state()), step=step + 1)
    signal.alarm(0)
signal.setitimer(signal.ITIMER_VIRTUAL, 0)  # Python itself would die of it on its way out
net.finish()

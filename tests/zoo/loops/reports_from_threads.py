"""Each report comes from a thread of its own, while others log."""

import threading

from tiny import STEPS, Net

import trainjob

net = Net()
if checkpoint := trainjob.get_checkpoint():
    net.load(checkpoint.to_dict())
over = threading.Event()


def log(name):
    while not over.wait(0.001):
        trainjob.log({name: 1.0})


loggers = [threading.Thread(target=log, args=(f"logger-{number}",), daemon=True) for number in range(4)]
for thread in loggers:
    thread.start()
for step in range(net.done, STEPS):
    loss = net.train_step(step)
    given = {"checkpoint": trainjob.Checkpoint.from_dict(net.state()), "step": step + 1}
    reporting = threading.Thread(target=trainjob.report, args=({"loss": loss},), kwargs=given)
    reporting.start()
    reporting.join()
over.set()
net.finish()

"""All signals are blocked, in all threads."""

import signal

signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())

from tiny import STEPS, Net  # noqa: E402

import trainjob  # noqa: E402

net = Net()
if checkpoint := trainjob.get_checkpoint():
    net.load(checkpoint.to_dict())
for step in range(net.done, STEPS):
    loss = net.train_step(step)
    trainjob.report({"loss": loss}, checkpoint=trainjob.Checkpoint.from_dict(net.state()), step=step + 1)
net.finish()

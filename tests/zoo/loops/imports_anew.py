"""Forgets the library and imports it again, every other step, as tools do that reload code."""

import sys

from tiny import STEPS, Net

import trainjob

net = Net()
if checkpoint := trainjob.get_checkpoint():
    net.load(checkpoint.to_dict())
for step in range(net.done, STEPS):
    if step % 2:
        for name in [name for name in sys.modules if name.partition(".")[0] in ("trainjob", "trainjob_api")]:
            del sys.modules[name]
        import trainjob
    loss = net.train_step(step)
    trainjob.report({"loss": loss}, checkpoint=trainjob.Checkpoint.from_dict(net.state()), step=step + 1)
net.finish()

"""No function, no guard: everything at the top, a dict as checkpoint, every step."""

from tiny import STEPS, Net

import trainjob

net = Net()
checkpoint = trainjob.get_checkpoint()
if checkpoint:
    net.load(checkpoint.to_dict())
for step in range(net.done, STEPS):
    loss = net.train_step(step)
    trainjob.report({"loss": loss}, checkpoint=trainjob.Checkpoint.from_dict(net.state()), step=step + 1)
net.finish()

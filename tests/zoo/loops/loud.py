"""Megabytes on stdout and stderr, progress bars with carriage returns, bytes that are no text, a line without an end."""

import os
import sys

from tiny import STEPS, Net

import trainjob

net = Net()
if checkpoint := trainjob.get_checkpoint():
    net.load(checkpoint.to_dict())
for step in range(net.done, STEPS):
    for done in range(101):
        sys.stderr.write(f"\repoch {step}: {done:3d}%|{'█' * (done // 5):<20}| {done}/100")
    sys.stderr.flush()
    print("x" * 200_000)
    os.write(1, bytes(range(256)) * 40)
    os.write(1, "half a character \xe4".encode()[:-1])
    loss = net.train_step(step)
    trainjob.report({"loss": loss}, checkpoint=trainjob.Checkpoint.from_dict(net.state()), step=step + 1)
net.finish()
sys.stdout.write("no newline at the end")

"""Writes the next checkpoint into the folder that the last one came in, file by file."""

import json
import os
import tempfile

from tiny import STEPS, Net

import trainjob

net = Net()
checkpoint = trainjob.get_checkpoint()
if checkpoint:
    folder = checkpoint.to_directory()
    with open(os.path.join(folder, "net.json")) as file:
        net.load(json.load(file))
else:
    folder = tempfile.mkdtemp()
for step in range(net.done, STEPS):
    loss = net.train_step(step)
    with open(os.path.join(folder, "net.json"), "w") as file:
        json.dump(net.state(), file)
    with open(os.path.join(folder, "history.txt"), "a") as file:
        file.write(f"{step} {loss}\n")
    trainjob.report({"loss": loss}, checkpoint=trainjob.Checkpoint.from_directory(folder), step=step + 1)
net.finish()

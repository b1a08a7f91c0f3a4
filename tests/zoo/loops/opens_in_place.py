"""Opens the restored file for update, inside as_directory(), and reports that very folder."""

import json
import os
import tempfile

from tiny import STEPS, Net

import trainjob

net = Net()
for step in range(STEPS):
    checkpoint = trainjob.get_checkpoint()
    if checkpoint is None:
        folder = tempfile.mkdtemp()
    else:
        folder = checkpoint.to_directory(f"work-{os.environ['RANK']}")
        with open(os.path.join(folder, "net.json")) as file:
            net.load(json.load(file))
    if step < net.done:
        continue
    loss = net.train_step(step)
    with open(os.path.join(folder, "net.json"), "r+" if checkpoint else "w") as file:
        file.truncate(0)
        json.dump(net.state(), file)
    trainjob.report({"loss": loss}, checkpoint=trainjob.Checkpoint.from_directory(folder), step=step + 1)
net.finish()

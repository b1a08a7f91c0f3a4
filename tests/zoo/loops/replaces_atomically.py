"""One folder for the whole run, files put there with os.replace, a `latest` link beside it, reported through the link."""

import json
import os

from tiny import STEPS, Net

import trainjob

rank = int(os.environ["RANK"])
folder = os.path.abspath(f"checkpoints-{rank}")
os.makedirs(folder, exist_ok=True)


def save(state, step):
    temporary = os.path.join(folder, "net.json.tmp")
    with open(temporary, "w") as file:
        json.dump(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, os.path.join(folder, "net.json"))
    link = os.path.join(os.path.dirname(folder), f"latest-{rank}")
    if os.path.islink(link):
        os.unlink(link)
    os.symlink(folder, link)
    return link


net = Net()
if checkpoint := trainjob.get_checkpoint():
    with checkpoint.open("net.json") as file:
        net.load(json.load(file))
for step in range(net.done, STEPS):
    loss = net.train_step(step)
    link = save(net.state(), step)
    trainjob.report({"loss": loss}, checkpoint=trainjob.Checkpoint.from_directory(link), step=step + 1)
net.finish()

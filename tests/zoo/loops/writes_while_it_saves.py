"""A background thread appends to a log inside the checkpoint folder all the time, also during report()."""

import json
import os
import tempfile
import threading

from tiny import STEPS, Net

import trainjob

folder = tempfile.mkdtemp()
over = threading.Event()


def log_usage():
    while not over.wait(0.001):
        with open(os.path.join(folder, f"usage-{os.environ['RANK']}.log"), "a") as file:
            file.write("cpu 100%\n" * 50)


thread = threading.Thread(target=log_usage, daemon=True)
thread.start()
net = Net()
if checkpoint := trainjob.get_checkpoint():
    with checkpoint.open("net.json") as file:
        net.load(json.load(file))
for step in range(net.done, STEPS):
    loss = net.train_step(step)
    with open(os.path.join(folder, "net.json"), "w") as file:
        json.dump(net.state(), file)
    trainjob.report({"loss": loss}, checkpoint=trainjob.Checkpoint.from_directory(folder), step=step + 1)
over.set()
net.finish()

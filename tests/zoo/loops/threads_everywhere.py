"""A daemon thread that prefetches for ever, an executor that writes files, and training in a thread that is not the main
one; an exception there is raised again in the main one.
"""

import json
import os
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from tiny import STEPS, Net

import trainjob


def prefetch():
    while True:
        time.sleep(0.01)


def save(state, folder):
    with open(os.path.join(folder, "net.json"), "w") as file:
        json.dump(state, file)
    return folder


def train():
    net = Net()
    if checkpoint := trainjob.get_checkpoint():
        with checkpoint.as_directory() as folder, open(os.path.join(folder, "net.json")) as file:
            net.load(json.load(file))
    with ThreadPoolExecutor(2) as writers:
        for step in range(net.done, STEPS):
            loss = net.train_step(step)
            folder = writers.submit(save, net.state(), tempfile.mkdtemp()).result()  # and nobody removes it
            trainjob.report({"loss": loss}, checkpoint=trainjob.Checkpoint.from_directory(folder), step=step + 1)
    net.finish()


if __name__ == "__main__":
    threading.Thread(target=prefetch, daemon=True).start()
    with ThreadPoolExecutor(1) as outer:
        outer.submit(train).result()

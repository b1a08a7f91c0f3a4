"""Saves into its current folder with a relative path, hidden files and empty folders included, and cleans the old ones up."""

import json
import os
import shutil
import tempfile
from pathlib import Path

from tiny import STEPS, Net

import trainjob

os.chdir(tempfile.mkdtemp())
net = Net()
if checkpoint := trainjob.get_checkpoint():
    net.load(json.loads(Path(checkpoint.to_directory("."), "model", "net.json").read_text()))
for step in range(net.done, STEPS):
    loss = net.train_step(step)
    for name in ("model", "logs/empty"):
        shutil.rmtree(name, ignore_errors=True)
        os.makedirs(name)
    Path("model/net.json").write_text(json.dumps(net.state()))
    Path("model/.hidden").write_text("x")
    Path("model/name with spaces (ä).txt").write_text("x")
    trainjob.report({"loss": loss}, checkpoint=trainjob.Checkpoint.from_directory("."), step=step + 1)
net.finish()

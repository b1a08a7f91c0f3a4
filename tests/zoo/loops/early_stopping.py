"""Rank 0 decides when to stop, all are told by a broadcast; only rank 0 has files."""

import json
import os
import tempfile

from tiny import Net

import trainjob

net, best, patience = Net(), float("inf"), 0
rank = trainjob.get_context().get_world_rank()
if checkpoint := trainjob.get_checkpoint():
    with checkpoint.as_directory() as folder, open(os.path.join(folder, "state.json")) as file:
        saved = json.load(file)
    net.load(saved["net"])
    best, patience = saved["best"], saved["patience"]
step = net.done
while True:
    loss = net.train_step(step)
    patience = 0 if loss < best else patience + 1
    best = min(best, loss)
    stop = trainjob.broadcast_from_rank_zero(patience >= 2 or step >= 30 if rank == 0 else None)
    if rank == 0:
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "state.json"), "w") as file:
                json.dump({"net": net.state(), "best": best, "patience": patience}, file)
            trainjob.report({"loss": loss}, trainjob.Checkpoint.from_directory(folder), step=step + 1)
    else:
        trainjob.report({"loss": loss}, step=step + 1)
    if stop:
        break
    step += 1
net.finish()

"""A line through points, fitted on several ranks that speak by MPI: each has a part of every batch.

Started by mpirun, as examples/mpi/trainjob.yaml says.
"""

import argparse
import pathlib
import tempfile

import numpy as np
from mpi4py import MPI

import trainjob

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--save-every", type=int, default=20)
given = parser.parse_args()

world = MPI.COMM_WORLD
begin, weights = 0, np.zeros(4)
if checkpoint := trainjob.get_checkpoint():
    with checkpoint.as_directory() as folder:
        saved = np.load(pathlib.Path(folder, "state.npz"))
        begin, weights = int(saved["step"]), saved["weights"]


def batch_of(step):
    """This rank's part of it, by the number of the step: after a restart the same."""
    drawn = np.random.default_rng([step, world.rank]).normal(size=(32, 4))
    return drawn, drawn @ np.arange(4.0)


for step in range(begin + 1, given.steps + 1):
    inputs, wanted = batch_of(step)
    errors = inputs @ weights - wanted
    mean = world.allreduce(inputs.T @ errors / len(errors)) / world.size
    weights = weights - 0.1 * mean
    if step % given.save_every == 0 or step == given.steps or trainjob.checkpoint_requested():
        loss = world.allreduce(float(np.mean(errors**2))) / world.size
        with tempfile.TemporaryDirectory() as folder:
            if world.rank == 0:
                np.savez(pathlib.Path(folder, "state.npz"), step=step, weights=weights)
            trainjob.report({"loss": loss}, checkpoint=trainjob.Checkpoint.from_directory(folder), step=step)

"""A small network in JAX on several ranks: each has a part of every batch, all have the same weights.

tj run examples/jax/train.py --workers 2 --name net
"""

import argparse
import pathlib
import pickle
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import trainjob
import trainjob.jax

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--save-every", type=int, default=20)
given = parser.parse_args()

trainjob.jax.initialize()  # before anything that asks for a device
context = trainjob.get_context()
mesh = Mesh(jax.devices(), "data")  # the devices of all ranks
rows, everywhere = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())


def loss(weights, batch):
    hidden = jnp.tanh(batch[:, :4] @ weights["in"])
    return jnp.mean((hidden @ weights["out"] - batch[:, 4]) ** 2)


@jax.jit
def step(weights, batch):
    value, gradient = jax.value_and_grad(loss)(weights, batch)
    return jax.tree.map(lambda weight, slope: weight - 0.1 * slope, weights, gradient), value


def batch_of(step):
    """This rank's part of it, by the number of the step: after a restart the same."""
    drawn = np.random.default_rng([step, context.rank]).normal(size=(32, 4))
    return np.column_stack([drawn, np.sin(drawn).sum(axis=1)]).astype("float32")


begin, weights = 0, {"in": np.random.default_rng(0).normal(size=(4, 16)) / 2, "out": np.zeros(16)}
if checkpoint := trainjob.get_checkpoint():
    with checkpoint.as_directory() as folder:
        begin, weights = pickle.loads(pathlib.Path(folder, "weights.pkl").read_bytes())
weights = jax.device_put(jax.tree.map(lambda array: array.astype("float32"), weights), everywhere)

for number in range(begin + 1, given.steps + 1):
    weights, value = step(weights, jax.make_array_from_process_local_data(rows, batch_of(number)))
    if number % given.save_every == 0 or number == given.steps or trainjob.checkpoint_requested():
        with tempfile.TemporaryDirectory() as folder:
            if context.rank == 0:
                pathlib.Path(folder, "weights.pkl").write_bytes(pickle.dumps((number, jax.device_get(weights))))
            saved = trainjob.Checkpoint.from_directory(folder)
            trainjob.report({"loss": float(value)}, checkpoint=saved, step=number)

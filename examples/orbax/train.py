"""A network in JAX whose weights lie in parts on several ranks: each saves its own with Orbax, and loads its own.

tj run examples/orbax/train.py --workers 2 --name orbax
"""

import argparse

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
mesh = Mesh(jax.devices(), "ranks")
rows, everywhere = NamedSharding(mesh, PartitionSpec("ranks")), NamedSharding(mesh, PartitionSpec())
columns = NamedSharding(mesh, PartitionSpec(None, "ranks"))


def loss(weights, batch):
    hidden = jnp.tanh(batch[:, :4] @ weights["in"] + weights["bias"])
    return jnp.mean((hidden @ weights["out"] - batch[:, 4]) ** 2)


@jax.jit
def step(weights, batch):
    value, gradient = jax.value_and_grad(loss)(weights, batch)
    return jax.tree.map(lambda weight, slope: weight - 0.1 * slope, weights, gradient), value


def batch_of(number):
    """This rank's part of what the number of the step alone decides: the same at any number of ranks."""
    drawn = np.random.default_rng(number).normal(size=(64, 4))
    whole = np.column_stack([drawn, np.sin(drawn).sum(axis=1)]).astype("float32")
    return np.split(whole, context.world_size)[context.rank]


start = np.random.default_rng(0).normal(size=(4, 16)).astype("float32") / 2
weights = {
    "in": jax.device_put(start, columns),  # each rank has some of the columns
    "bias": jax.device_put(np.zeros(16, "float32"), everywhere),  # all ranks have the same
    "out": jax.device_put(np.zeros(16, "float32"), rows),
}
state = {"step": 0, "weights": weights}
if checkpoint := trainjob.get_checkpoint():
    state = trainjob.orbax.load(state, checkpoint)

for number in range(state["step"] + 1, given.steps + 1):
    weights, value = step(state["weights"], jax.make_array_from_process_local_data(rows, batch_of(number)))
    state = {"step": number, "weights": weights}
    if number % given.save_every == 0 or number == given.steps or trainjob.checkpoint_requested():
        trainjob.report({"loss": float(value)}, checkpoint=trainjob.orbax.save(state), step=number)

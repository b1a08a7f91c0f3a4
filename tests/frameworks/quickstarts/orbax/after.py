import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import trainjob.orbax

jax.distributed.initialize()
mesh = Mesh(jax.devices(), "data")
x = np.random.default_rng(jax.process_index()).normal(size=(32, 4)).astype("float32")
batch = jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec("data")), x)


@jax.jit
def update(weights, batch):
    loss, slope = jax.value_and_grad(lambda w: jnp.mean((batch @ w - batch.sum(1)) ** 2))(weights)
    return weights - 0.1 * slope, loss


folder = pathlib.Path("out").absolute()
checkpointer = ocp.StandardCheckpointer()
state = {"weights": jax.device_put(np.zeros(4, "float32"), NamedSharding(mesh, PartitionSpec())), "step": 0}
state = trainjob.orbax.load(state)
for step in range(state["step"], 40):
    weights, loss = update(state["weights"], batch)
    state = {"weights": weights, "step": step + 1}
    if step % 10 == 9:
        trainjob.report({"loss": float(loss)}, checkpoint=trainjob.orbax.save(state), step=step + 1)
checkpointer.close()

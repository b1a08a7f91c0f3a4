"""A Keras model under MultiWorkerMirroredStrategy, in a loop of its own: Keras 3's fit() does not run there.

tj run examples/keras/train.py --workers 2 --name keras
"""

import argparse
import pathlib
import pickle
import tempfile

import keras
import numpy as np
import tensorflow as tf

import trainjob
import trainjob.tensorflow

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--save-every", type=int, default=20)
given = parser.parse_args()

trainjob.tensorflow.set_tf_config()  # before the strategy, which reads it
strategy = tf.distribute.MultiWorkerMirroredStrategy()
rank = trainjob.get_context().rank
keras.utils.set_random_seed(1)
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)
state, begin = [*model.variables, *optimizer.variables], 0
if checkpoint := trainjob.get_checkpoint():
    with checkpoint.as_directory() as folder:
        begin, saved = pickle.loads(pathlib.Path(folder, "state.pkl").read_bytes())
    for variable, value in zip(state, saved, strict=True):
        variable.assign(value)


def replica(inputs, wanted):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(inputs, training=True) - wanted) ** 2) / strategy.num_replicas_in_sync
    optimizer.apply(tape.gradient(loss, model.trainable_variables))  # the sum of all ranks'
    return loss


@tf.function
def step_of(inputs, wanted):
    return strategy.reduce("sum", strategy.run(replica, (inputs, wanted)), axis=None)


for step in range(begin + 1, given.steps + 1):
    drawn = np.random.default_rng([step, rank]).normal(size=(32, 4)).astype("float32")  # this rank's part of the step
    loss = step_of(tf.constant(drawn), tf.constant(np.sin(drawn).sum(axis=1, keepdims=True)))
    if step % given.save_every == 0 or step == given.steps or trainjob.checkpoint_requested():
        with tempfile.TemporaryDirectory() as folder:
            if rank == 0:
                content = pickle.dumps((step, [variable.numpy() for variable in state]))
                pathlib.Path(folder, "state.pkl").write_bytes(content)
            saved = trainjob.Checkpoint.from_directory(folder)
            trainjob.report({"loss": float(loss)}, checkpoint=saved, step=step)

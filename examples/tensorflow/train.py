"""A small network in TensorFlow on several ranks: each has a part of every batch, all have the same weights.

tj run examples/tensorflow/train.py --workers 2 --name net
"""

import argparse
import pathlib
import pickle
import tempfile

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
context = trainjob.get_context()

begin, start = 0, [np.random.default_rng(0).normal(size=(4, 16)) / 2, np.zeros(16)]
if checkpoint := trainjob.get_checkpoint():
    with checkpoint.as_directory() as folder:
        begin, start = pickle.loads(pathlib.Path(folder, "weights.pkl").read_bytes())
with strategy.scope():
    weights = [tf.Variable(array, dtype="float32") for array in start]


def batch_of(step):  # this rank's part of it: after a restart the same
    drawn = np.random.default_rng([step, context.rank]).normal(size=(32, 4)).astype("float32")
    return tf.constant(drawn), tf.constant(np.sin(drawn).sum(axis=1))


def replica(inputs, wanted):
    with tf.GradientTape() as tape:
        found = tf.linalg.matvec(tf.tanh(inputs @ weights[0]), weights[1])
        loss = tf.reduce_mean((found - wanted) ** 2)
    summed = tf.distribute.get_replica_context().all_reduce("mean", tape.gradient(loss, weights))
    tf.nest.map_structure(lambda weight, slope: weight.assign_sub(0.1 * slope), weights, summed)
    return loss


@tf.function
def step_of(inputs, wanted):
    return strategy.reduce("mean", strategy.run(replica, (inputs, wanted)), axis=None)


for number in range(begin + 1, given.steps + 1):
    loss = step_of(*batch_of(number))
    if number % given.save_every == 0 or number == given.steps or trainjob.checkpoint_requested():
        with tempfile.TemporaryDirectory() as folder:
            if context.rank == 0:
                content = pickle.dumps((number, [weight.numpy() for weight in weights]))
                pathlib.Path(folder, "weights.pkl").write_bytes(content)
            trainjob.report({"loss": float(loss)}, checkpoint=trainjob.Checkpoint.from_directory(folder), step=number)

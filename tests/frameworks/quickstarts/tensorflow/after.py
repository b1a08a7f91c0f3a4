import tempfile

import numpy as np
import tensorflow as tf

import trainjob

strategy = tf.distribute.MultiWorkerMirroredStrategy()
x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
rows = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1))).repeat().batch(16)
batches = iter(strategy.experimental_distribute_dataset(rows))
with strategy.scope():
    weights = tf.Variable(tf.zeros(4))
    epoch = tf.Variable(0, dtype=tf.int64)


@tf.function
def train_step(batch):
    def replica(inputs, targets):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(inputs, weights) - targets) ** 2)
        slope = tf.distribute.get_replica_context().all_reduce("mean", tape.gradient(loss, weights))
        weights.assign_sub(0.1 * slope)
        return loss

    return strategy.reduce("mean", strategy.run(replica, batch), axis=None)


folder = "out" if strategy.cluster_resolver.task_id in (None, 0) else tempfile.mkdtemp()
if saved := trainjob.get_checkpoint():
    saved.to_directory(folder)
checkpoint = tf.train.Checkpoint(weights=weights, epoch=epoch)
manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=1)
checkpoint.restore(manager.latest_checkpoint)
while epoch < 4:
    loss = train_step(next(batches))
    epoch.assign_add(1)
    manager.save()
    trainjob.report({"loss": float(loss)}, checkpoint=trainjob.Checkpoint.from_directory(folder), step=epoch.numpy())

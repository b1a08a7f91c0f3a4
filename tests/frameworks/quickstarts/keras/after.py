import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"
import numpy as np
import tensorflow as tf

import trainjob.keras

strategy = tf.distribute.MultiWorkerMirroredStrategy()
x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1))).batch(16)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(8, "relu"), tf.keras.layers.Dense(1)])
    model.build((None, 4))
    model.compile(optimizer="adam", loss="mse", metrics=["mae"])
begin = trainjob.keras.load(model)
model.fit(data, epochs=3, initial_epoch=begin, callbacks=[trainjob.keras.ReportCallback()])

import lightgbm
import numpy as np

from trainjob.lightgbm import ReportCallback, load_booster, network_params, rounds_left

x = np.random.default_rng(0).normal(size=(200, 4))
data = lightgbm.Dataset(x, x.sum(axis=1))
params = {"tree_learner": "data", "num_leaves": 4, "verbose": -1, **network_params()}
if left := rounds_left(10):
    booster = lightgbm.train(params, data, left, init_model=load_booster(), callbacks=[ReportCallback(5)])

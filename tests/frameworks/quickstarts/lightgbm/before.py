import lightgbm
import numpy as np

x = np.random.default_rng(0).normal(size=(200, 4))
data = lightgbm.Dataset(x, x.sum(axis=1))
params = {"tree_learner": "data", "num_leaves": 4, "verbose": -1}
booster = lightgbm.train(params, data, num_boost_round=10)

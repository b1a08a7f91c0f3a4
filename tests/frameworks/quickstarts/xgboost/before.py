import numpy as np
import xgboost

x = np.random.default_rng(0).normal(size=(200, 4))
data = xgboost.DMatrix(x, x.sum(axis=1))
booster = xgboost.train({"max_depth": 2}, data, num_boost_round=10)

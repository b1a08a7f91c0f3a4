"""XGBoost on several ranks: each has a part of the rows, all have the same booster.

tj run examples/xgboost/train.py --workers 2 --name trees
"""

import argparse

import numpy as np
import xgboost

import trainjob
from trainjob.xgboost import ReportCallback, communicator, load_booster, rounds_left

parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=40)
parser.add_argument("--rows", type=int, default=4000)
given = parser.parse_args()

drawn = np.random.default_rng(0)
table = drawn.normal(size=(given.rows, 6))
answer = (table[:, 0] * table[:, 1] + table[:, 2] ** 2 > 1).astype(float)

context = trainjob.get_context()
mine = slice(context.get_world_rank(), None, context.get_world_size())  # in earnest: read your own files

with communicator():  # XGBoost's tracker runs beside rank 0
    data = xgboost.DMatrix(table[mine], answer[mine])
    xgboost.train(
        {"objective": "binary:logistic", "eval_metric": ["logloss", "error"], "max_depth": 4},
        data,
        num_boost_round=rounds_left(given.rounds),
        xgb_model=load_booster(),  # None at first; after a restart the booster of the newest checkpoint
        evals=[(data, "train")],
        verbose_eval=False,
        callbacks=[ReportCallback(every_n_rounds=5)],
    )

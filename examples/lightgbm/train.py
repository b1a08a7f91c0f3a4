"""LightGBM on several ranks: each has a part of the rows, all have the same booster.

tj run examples/lightgbm/train.py --workers 2 --name leaves
"""

import argparse

import lightgbm
import numpy as np

import trainjob
from trainjob.lightgbm import ReportCallback, load_booster, network_params, rounds_left

parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=40)
parser.add_argument("--rows", type=int, default=4000)
given = parser.parse_args()

drawn = np.random.default_rng(0)
table = drawn.normal(size=(given.rows, 6))
answer = (table[:, 0] * table[:, 1] + table[:, 2] ** 2 > 1).astype(float)

context = trainjob.get_context()
mine = slice(context.get_world_rank(), None, context.get_world_size())  # in earnest: read your own files

data = lightgbm.Dataset(table[mine], answer[mine], free_raw_data=False)  # a booster that goes on needs the rows
booster, left = (
    load_booster(),
    rounds_left(given.rounds),
)  # None at first; after a restart that of the newest checkpoint
if left:
    booster = lightgbm.train(
        {"objective": "binary", "num_leaves": 15, "num_threads": 1, "verbose": -1, **network_params()},
        data,
        num_boost_round=left,
        init_model=booster,
        valid_sets=[data],
        valid_names=["train"],
        callbacks=[ReportCallback(every_n_rounds=5)],
    )

# expect: has no counterpart
from ray import tune
from ray.tune import Tuner

Tuner(lambda c: None).fit()

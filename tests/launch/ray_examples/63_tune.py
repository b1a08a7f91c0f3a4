# expect: ray.tune.Tuner has no counterpart in TrainJob
from ray import tune
from ray.tune import Tuner

Tuner(lambda c: None).fit()

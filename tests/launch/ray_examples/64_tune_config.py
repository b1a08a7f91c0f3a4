# expect: ray.tune.schedulers has no counterpart in TrainJob
import ray.tune
from ray.train import RunConfig
from ray.tune.schedulers import ASHAScheduler

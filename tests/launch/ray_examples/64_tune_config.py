# expect: has no counterpart
import ray.tune
from ray.train import RunConfig
from ray.tune.schedulers import ASHAScheduler

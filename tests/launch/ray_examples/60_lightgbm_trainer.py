# expect: has no counterpart
import ray.train
from ray.train.lightgbm import LightGBMTrainer, RayTrainReportCallback

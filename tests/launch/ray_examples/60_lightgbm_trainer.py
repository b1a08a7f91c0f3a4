# expect: ray.train.lightgbm has no counterpart in TrainJob
import ray.train
from ray.train.lightgbm import LightGBMTrainer, RayTrainReportCallback

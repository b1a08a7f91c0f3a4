# expect: ray.train.xgboost has no counterpart in TrainJob
import ray.data
import ray.train
from ray.train.xgboost import RayTrainReportCallback, XGBoostTrainer

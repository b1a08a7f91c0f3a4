# expect: ray.data has no counterpart in TrainJob
import ray.data
import ray.train
from ray.train.xgboost import XGBoostTrainer


def train_func():
    ray.train.get_dataset_shard("train")


trainer = XGBoostTrainer(
    train_func,
    datasets={"train": ray.data.from_items([{"x": 1.0, "y": 0.0}])},
    scaling_config=ray.train.ScalingConfig(num_workers=2),
)
trainer.fit()

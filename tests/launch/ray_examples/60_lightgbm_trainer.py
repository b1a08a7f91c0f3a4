# needs: lightgbm
import lightgbm
import numpy
import ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.lightgbm import LightGBMTrainer, RayTrainReportCallback, get_network_params


def train_func(config):
    rank = ray.train.get_context().get_world_rank()
    table = numpy.random.default_rng(rank).normal(size=(200, 3))
    data = lightgbm.Dataset(table, (table[:, 0] > 0).astype(float))
    params = {"objective": "binary", "metric": "binary_logloss", "verbose": -1, **get_network_params()}
    lightgbm.train(params, data, config["rounds"], valid_sets=[data], callbacks=[RayTrainReportCallback(frequency=2)])


if __name__ == "__main__":
    trainer = LightGBMTrainer(
        train_func,
        train_loop_config={"rounds": 5},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="trees"),
    )
    result = trainer.fit()
    booster = RayTrainReportCallback.get_model(result.checkpoint)
    assert booster.current_iteration() == 5, booster.current_iteration()
    print(result.metrics)

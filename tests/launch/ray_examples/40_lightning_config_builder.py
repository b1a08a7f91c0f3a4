# expect: ray.train.lightning.LightningConfigBuilder has no counterpart in TrainJob
from ray.train.lightning import LightningConfigBuilder, LightningTrainer

config_builder = LightningConfigBuilder()

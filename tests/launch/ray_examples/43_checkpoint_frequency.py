# expect: CheckpointConfig has no argument 'checkpoint_frequency'
from ray.train import CheckpointConfig, RunConfig

RunConfig(checkpoint_config=CheckpointConfig(checkpoint_frequency=10, checkpoint_at_end=True))

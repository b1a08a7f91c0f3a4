import tempfile
import uuid

import ray.train
import ray.train.torch


def train_fn_per_worker(train_loop_config: dict):
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as temp_checkpoint_dir:
            # model.load_state_dict(torch.load(...))
            ...
    for epoch in range(2):
        with tempfile.TemporaryDirectory() as temp_checkpoint_dir:
            # torch.save(...)
            ray.train.report({"epoch": epoch}, checkpoint=ray.train.Checkpoint.from_directory(temp_checkpoint_dir))


trainer = ray.train.torch.TorchTrainer(
    train_fn_per_worker,
    scaling_config=ray.train.ScalingConfig(num_workers=2),
    run_config=ray.train.RunConfig(failure_config=ray.train.FailureConfig(max_failures=3)),
)
trainer.fit()

import argparse
import tempfile
import uuid

import ray.train
import ray.train.torch


def train_fn_per_worker(train_loop_config: dict):
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as d:
            ...
    with tempfile.TemporaryDirectory() as temp_checkpoint_dir:
        ray.train.report({"a": 1}, checkpoint=ray.train.Checkpoint.from_directory(temp_checkpoint_dir))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--storage_path", type=str, default="./storage")
    parser.add_argument("--run_name", type=str, default=uuid.uuid4().hex)
    args = parser.parse_args()
    import os

    trainer = ray.train.torch.TorchTrainer(
        train_fn_per_worker,
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(
            name=args.run_name, storage_path=os.path.abspath(args.storage_path), failure_config=ray.train.FailureConfig(max_failures=3)
        ),
    )
    result = trainer.fit()
    assert args.run_name in result.path

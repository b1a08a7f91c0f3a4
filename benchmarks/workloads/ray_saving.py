"""The saves of saving.py's `copied` under Ray Train, one worker; run by a Python that has Ray.

ray_saving.py NOTES ROUNDS BYTES STORAGE
"""

import json
import os
import sys
import tempfile
import time


def loop(config: dict) -> None:
    import ray.train
    import torch

    state = {"weights": torch.arange(config["size"] // 4, dtype=torch.float32)}
    for number in range(-1, config["rounds"]):
        with tempfile.TemporaryDirectory() as folder:
            torch.save(state, os.path.join(folder, "state.pt"))
            begun = time.perf_counter()
            ray.train.report({"loss": 0.1}, checkpoint=ray.train.Checkpoint.from_directory(folder))
            blocked = time.perf_counter() - begun
        if number >= 0:
            with open(config["notes"], "a") as file:
                print(json.dumps({"way": "ray", "blocked": blocked}), file=file, flush=True)


def main(notes: str, rounds: str, size: str, storage: str) -> None:
    from ray.train import CheckpointConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    run = RunConfig(name="bench", storage_path=storage, checkpoint_config=CheckpointConfig(num_to_keep=1))
    config = {"notes": os.path.abspath(notes), "rounds": int(rounds), "size": int(size)}
    TorchTrainer(loop, train_loop_config=config, scaling_config=ScalingConfig(num_workers=1), run_config=run).fit()


if __name__ == "__main__":
    main(*sys.argv[1:])

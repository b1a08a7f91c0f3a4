"""The loop of steps.py under Ray Train, with the same notes, reports and checkpoints; run by a Python that has Ray.

ray_steps.py NOTES RANKS STORAGE [WHAT IS IMPORTED BESIDE TORCH ...]
"""

import importlib
import os
import sys
import tempfile
import time
from pathlib import Path

REPORT_EVERY, SAVE_EVERY = 10, 50


def loop(config: dict) -> None:
    import ray.train
    import torch
    from ray.train.torch import prepare_model

    for wish in config["imports"]:
        name, _, attribute = wish.partition(":")
        module = importlib.import_module(name)
        if attribute:
            getattr(module, attribute)
    torch.set_num_threads(1)
    rank = ray.train.get_context().get_world_rank()
    attempt = 1 + attempts_before(config["notes"], rank)
    model = prepare_model(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(32, 64)
    file = os.open(config["notes"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    step = first = resumed()
    end = time.monotonic() + 600
    while time.monotonic() < end:
        step += 1
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        os.write(file, f"{rank} {os.getpid()} {attempt} {step - first} {time.time():.6f}\n".encode())
        if step % REPORT_EVERY == 0:
            report(step, saves=step % SAVE_EVERY == 0)
        time.sleep(0.005)


def attempts_before(notes: str, rank: int) -> int:
    """Ray names no attempts: each is another process of this rank."""
    rows = [line.split() for line in Path(notes).read_text().splitlines()] if os.path.exists(notes) else []
    return max((int(row[2]) for row in rows if len(row) == 5 and int(row[0]) == rank), default=0)


def resumed() -> int:
    """The step that the checkpoint was saved at; 0: there is none."""
    import ray.train

    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        return int(Path(folder, "step").read_text())


def report(step: int, saves: bool) -> None:
    import ray.train

    if not saves:
        ray.train.report({"step": step})
        return
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "step").write_text(str(step))
        ray.train.report({"step": step}, checkpoint=ray.train.Checkpoint.from_directory(folder))


def main(notes: str, ranks: str, storage: str, *imports: str) -> None:
    import ray
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    ray.init(num_cpus=int(ranks) + 1, include_dashboard=False, log_to_driver=False)
    run = RunConfig(
        name="steps",
        storage_path=os.path.abspath(storage),
        failure_config=FailureConfig(max_failures=10),
        checkpoint_config=CheckpointConfig(num_to_keep=2),
    )
    TorchTrainer(
        loop,
        train_loop_config={"notes": os.path.abspath(notes), "imports": list(imports)},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=int(ranks)),
        run_config=run,
    ).fit()


if __name__ == "__main__":
    main(*sys.argv[1:])

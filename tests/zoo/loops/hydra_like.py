"""Configuration from a file with overrides `a.b=c`, a run folder by date, and os.chdir into it."""

import json
import logging
import os
import pickle
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from tiny import Net

import trainjob

log = logging.getLogger(__name__)
CONFIG = {"train": {"steps": 8, "save_every": 2}, "hydra": {"run": "outputs/%Y-%m-%d/%H-%M-%S"}}


def compose(overrides: list[str]) -> SimpleNamespace:
    config = json.loads(json.dumps(CONFIG))
    for override in overrides:
        path, _, value = override.partition("=")
        *parents, last = path.split(".")
        place = config
        for parent in parents:
            place = place[parent]
        place[last] = json.loads(value)
    return json.loads(json.dumps(config), object_hook=lambda d: SimpleNamespace(**d))


def main(cfg: SimpleNamespace) -> None:
    run = Path(time.strftime(cfg.hydra.run))
    run.mkdir(parents=True, exist_ok=True)
    os.chdir(run)
    logging.basicConfig(
        level=logging.INFO,
        format="[%(asctime)s][%(name)s] %(message)s",
        handlers=[logging.StreamHandler(sys.stdout), logging.FileHandler(f"train-{os.environ['RANK']}.log")],
    )
    net = Net()
    if checkpoint := trainjob.get_checkpoint():
        net.load(pickle.loads((Path(checkpoint.to_directory("resumed")) / "net.pkl").read_bytes()))
        log.info("resumed at %d", net.done)
    for step in range(net.done, cfg.train.steps):
        loss = net.train_step(step)
        log.info("step %d loss %.4f", step, loss)
        if (step + 1) % cfg.train.save_every == 0:
            # Relative to the folder it went to.
            folder = Path(f"checkpoints/step-{step}-{os.environ['RANK']}")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "net.pkl").write_bytes(pickle.dumps(net.state()))
            trainjob.report({"loss": loss}, checkpoint=trainjob.Checkpoint.from_directory(str(folder)), step=step + 1)
    net.finish()


if __name__ == "__main__":
    main(compose(sys.argv[1:]))

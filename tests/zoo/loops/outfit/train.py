"""`python -m outfit.train`: a package with relative imports."""

from __future__ import annotations

from tiny import STEPS

import trainjob

from .model import build


def main() -> int:
    net = build()
    if checkpoint := trainjob.get_checkpoint():
        net.load(checkpoint.to_dict())
    for step in range(net.done, STEPS):
        loss = net.train_step(step)
        trainjob.report({"loss": loss}, checkpoint=trainjob.Checkpoint.from_dict(net.state()), step=step + 1)
    net.finish()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

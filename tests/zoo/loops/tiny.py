"""The model that every animal trains: two numbers and momentum. Tells the test what it computed, and is where faults
strike. State travels as plain numbers, so that equal training gives equal bytes.
"""

from __future__ import annotations

import os
import select
import time

import trainjob
from support import faults

STEPS = 8


def _note(name: str, text: str) -> None:
    """One write, so that it is there even if the process is killed right after it."""
    descriptor = os.open(os.path.join(os.environ["ZOO_NOTES"], name), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(descriptor, f"{text}\n".encode())
    os.close(descriptor)


class Model:
    """`weight` follows a stream of data that depends on the step alone."""

    def __init__(self) -> None:
        self.weight, self.velocity, self.done = 0.5, 0.0, 0

    def sgd(self, step: int) -> float:
        """One step with momentum; the loss before it."""
        x = (step * 7919 % 97 + 1) / 97
        error = self.weight * x - 1.0
        self.velocity = 0.9 * self.velocity + 2 * error * x
        self.weight -= 0.05 * self.velocity
        self.done += 1
        return error * error


class Net(Model):
    """As the loops train it: in a rank, with notes."""

    def __init__(self, started: bool = True) -> None:
        """`started`: it notes that a rank has, for loops that do not say themselves where they go on."""
        super().__init__()
        self._rank, attempt = os.environ["RANK"], os.environ["TRAINJOB_ATTEMPT"]
        if started:
            _note(f"rank-{self._rank}", f"{attempt} start 0 {time.time()} {os.environ['TRAINJOB_POD_UID']}")

    def state(self) -> dict[str, float]:
        return {"weight": self.weight, "velocity": self.velocity, "done": self.done}

    def load(self, state: dict[str, float]) -> None:
        self.weight, self.velocity, self.done = state["weight"], state["velocity"], int(state["done"])

    def train_step(self, step: int) -> float:
        """One step; the loss before it. Not before the test is ready for the first one."""
        while os.path.exists(os.path.join(os.environ["ZOO_NOTES"], "hold")):
            select.select((), (), (), 0.01)  # some loops have a time of their own
        faults.point(faults.STEP, step)
        if step != self.done:
            raise AssertionError(f"step {step} was asked for, and the weights are those of step {self.done}")
        loss = self.sgd(step)
        _note(f"losses-{self._rank}", f"{step} {loss.hex()}")
        return loss

    def finish(self) -> None:
        """Training is over: what came out."""
        _note(f"final-{self._rank}", f"{self.done} {float(self.weight).hex()}")


def train(net: Net) -> None:
    """Resumes and trains as most scripts do: for loops that are odd elsewhere."""
    if checkpoint := trainjob.get_checkpoint():
        net.load(checkpoint.to_dict())
    for step in range(net.done, STEPS):
        loss = net.train_step(step)
        trainjob.report({"loss": loss}, checkpoint=trainjob.Checkpoint.from_dict(net.state()), step=step + 1)
    net.finish()

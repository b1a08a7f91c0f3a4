"""Metrics of all sorts: thousands, no numbers, nested, endless texts."""

import math

from tiny import STEPS, Net

import trainjob

net = Net()
if checkpoint := trainjob.get_checkpoint():
    net.load(checkpoint.to_dict())
for step in range(net.done, STEPS):
    loss = net.train_step(step)
    metrics = {
        "loss": loss,
        "nan": math.nan,
        "inf": [math.inf, -math.inf, -0.0],
        "nested": {"a": {"b": [1, "two", None, True]}},
        "text": "x" * 100_000,
        "\n\0\ud800": "\U0001f9ea",
        **{f"metric-{number}": number / 7 for number in range(3000)},
    }
    trainjob.log({"loss": loss, "nan": math.nan}, step=step)
    trainjob.report(metrics, checkpoint=trainjob.Checkpoint.from_dict(net.state()), step=step + 1)
net.finish()

"""Everything in try/except Exception, as a script that must never stop: what goes wrong is logged, and the loop goes on."""

import logging
import sys

from tiny import STEPS, Net

import trainjob

logging.basicConfig(level=logging.INFO, stream=sys.stdout)
net = Net()
if checkpoint := trainjob.get_checkpoint():
    net.load(checkpoint.to_dict())
for step in range(net.done, STEPS):
    loss = net.train_step(step)
    try:
        trainjob.report({"loss": loss}, checkpoint=trainjob.Checkpoint.from_dict(net.state()), step=step + 1)
    except Exception:
        logging.exception("could not report step %d, going on", step)
net.finish()

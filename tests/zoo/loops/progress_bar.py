"""A bar of tqdm's over the steps, one inside for the batches, print() between."""

from tiny import STEPS, Net
from tqdm import tqdm, trange

import trainjob

net = Net()
if checkpoint := trainjob.get_checkpoint():
    net.load(checkpoint.to_dict())
for step in trange(net.done, STEPS, desc="epochs", mininterval=0):
    for _ in tqdm(range(200), desc=f"batches of {step}", leave=False, mininterval=0):
        pass
    loss = net.train_step(step)
    tqdm.write(f"step {step}: {loss}")
    trainjob.report({"loss": loss}, checkpoint=trainjob.Checkpoint.from_dict(net.state()), step=step + 1)
net.finish()

"""A tracker in the manner of wandb: a service process in a session of its own, spoken to through a pipe. It ignores
SIGTERM and SIGINT, and nobody ends it.
"""

import subprocess
import sys

from tiny import STEPS, Net

import trainjob

SERVICE = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("service up", flush=True)
for line in sys.stdin:
    pass
while True:
    time.sleep(1)
"""


def main():
    service = subprocess.Popen(
        [sys.executable, "-c", SERVICE], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
    )
    net = Net()
    if checkpoint := trainjob.get_checkpoint():
        net.load(checkpoint.to_dict())
    for step in range(net.done, STEPS):
        loss = net.train_step(step)
        service.stdin.write(f"{step} {loss}\n".encode())
        service.stdin.flush()
        trainjob.report({"loss": loss}, checkpoint=trainjob.Checkpoint.from_dict(net.state()), step=step + 1)
    net.finish()


if __name__ == "__main__":
    main()

"""An executor of spawned processes, whose locks have names in /dev/shm until Python's resource tracker takes them away."""

import concurrent.futures
import multiprocessing

from tiny import STEPS, Net

import trainjob


def square(x):
    return x * x


def main():
    net = Net()
    if checkpoint := trainjob.get_checkpoint():
        net.load(checkpoint.to_dict())
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as spawned:
        for step in range(net.done, STEPS):
            assert spawned.submit(square, 3).result() == 9
            loss = net.train_step(step)
            trainjob.report({"loss": loss}, checkpoint=trainjob.Checkpoint.from_dict(net.state()), step=step + 1)
    net.finish()


if __name__ == "__main__":
    main()

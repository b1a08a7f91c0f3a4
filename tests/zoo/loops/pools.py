"""A forked pool that lives as long as the script and is never closed."""

import multiprocessing

from tiny import STEPS, Net

import trainjob


def square(x):
    return x * x


def main():
    forked = multiprocessing.get_context("fork").Pool(2)
    net = Net()
    if checkpoint := trainjob.get_checkpoint():
        net.load(checkpoint.to_dict())
    for step in range(net.done, STEPS):
        assert forked.map(square, range(4)) == [0, 1, 4, 9]
        loss = net.train_step(step)
        trainjob.report({"loss": loss}, checkpoint=trainjob.Checkpoint.from_dict(net.state()), step=step + 1)
    net.finish()


if __name__ == "__main__":
    main()

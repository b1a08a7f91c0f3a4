"""Closes its standard streams, as objects and as descriptors; what it opens next gets their numbers."""

import os
import sys

from tiny import Net, train

for stream in (sys.stdin, sys.stdout, sys.stderr):
    stream.close()
files = [open(f"taken-{os.environ['RANK']}-{number}", "w") for number in range(3)]
train(Net())

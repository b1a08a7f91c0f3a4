"""Executes itself again with PYTHONHASHSEED set, as the recipe for reproducible runs says."""

import os
import sys

if os.environ.get("PYTHONHASHSEED") != "0":
    os.environ["PYTHONHASHSEED"] = "0"
    os.execv(sys.executable, [sys.executable, *sys.argv])

from tiny import Net, train

train(Net())

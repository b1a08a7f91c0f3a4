"""count.py in a script that imports an installed package besides, and says whether it was there before."""

from __future__ import annotations

import os
import sys

AHEAD = "large.lazy" in sys.modules

import count  # noqa: E402
from large import lazy  # noqa: E402, F401 - whether it is there is looked at first

if __name__ == "__main__":
    print(f"in attempt {os.environ['TRAINJOB_ATTEMPT']} it was", "there" if AHEAD else "imported", flush=True)
    count.main()

"""Works in a folder that it has removed."""

import os
import tempfile

from tiny import Net, train

folder = tempfile.mkdtemp()
os.chdir(folder)
os.rmdir(folder)
train(Net())

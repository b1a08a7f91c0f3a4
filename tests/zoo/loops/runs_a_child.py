"""A launcher in Python: prepares, then runs the real script as a child and looks at its exit code."""

import os
import subprocess
import sys

environment = {**os.environ, "LEARNING_RATE": "0.05"}
sys.exit(subprocess.run([sys.executable, "argparse_main.py", "--every", "2"], env=environment).returncode)

"""Python imports this when it starts, in a process whose PYTHONPATH has this folder: in the one that a plan of
`support.os_faults` names, calls begin to fail.
"""

import sys

from support import os_faults

os_faults.arm_here(sys.orig_argv)

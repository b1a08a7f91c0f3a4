"""Python imports this when it starts, in a process whose PYTHONPATH has this folder: where a plan of `support.os_faults`
names the process, calls begin to fail; where one of `support.faults` has a moment that it meets, it asks first.
"""

import os
import sys

if "TRAINJOB_TEST_OS_FAULTS" in os.environ:
    from support import os_faults

    os_faults.arm_here(sys.orig_argv)
if "TRAINJOB_TEST_FAULTS" in os.environ:
    from support.faults import points

    points.arm_here(sys.orig_argv)

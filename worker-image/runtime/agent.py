"""Run by `start`, which lies beside it: becomes the agent that `lib/` holds, with the standard library and nothing
else on its path.
"""

import os
import sys

if __name__ == "__main__":
    sys.path[0] = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib")
    from trainjob.agent.__main__ import main

    code = main()
    sys.stdout.flush()
    # As the agent itself ends: no interpreter teardown.
    os._exit(code)

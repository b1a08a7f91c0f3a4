"""Makes itself a session and process group of its own, lowers its limits and its priority, has a private umask."""

import os
import resource

from tiny import Net, train

if os.getpid() != os.getsid(0):
    try:
        os.setsid()
    except PermissionError:
        os.setpgrp()
os.nice(1)
os.umask(0o077)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

train(Net())

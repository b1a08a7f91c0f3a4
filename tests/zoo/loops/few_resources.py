"""Limits of its own: small files, few descriptors, hardly any more memory, the lowest priority."""

import os
import resource

from tiny import Net, train

os.nice(19)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
train(Net())

"""All signals are blocked, in all threads."""

import signal

signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())

from tiny import Net, train  # noqa: E402

train(Net())

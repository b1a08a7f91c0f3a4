"""faulthandler for every signal there is, into a file of its own, with a watchdog; warnings are errors; gc is off."""

import faulthandler
import gc
import os
import signal
import warnings

from tiny import Net, train

crashes = open(f"crashes-{os.environ['RANK']}.txt", "w")
faulthandler.enable(crashes, all_threads=True)
for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGABRT, signal.SIGQUIT):
    if number != signal.SIGABRT:
        faulthandler.register(number, file=crashes, all_threads=True)
faulthandler.dump_traceback_later(60, exit=True)
warnings.simplefilter("error")
gc.disable()

train(Net())
faulthandler.cancel_dump_traceback_later()

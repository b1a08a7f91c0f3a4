"""`tj` (and `kubectl tj`): run, watch and check training jobs from a shell.

Nothing heavy is imported before a command runs, so that `tj --help` answers at once. The commands build a TrainJob,
hand it to `trainjob.launch` and show what happens; they decide nothing about the job themselves.
"""

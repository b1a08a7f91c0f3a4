"""A job whose rank is the process that asked for it: for debuggers, profilers and tests.

The boundary is "who is the rank's program". Operator, agent, barrier, commits and storage are those of any local job,
in processes of their own (`companion`). The agent starts a stand-in as its rank (`stand_in`), which lends its place to
the process that trains (`guest`): that one speaks to the agent over the session's own socket, and its end becomes the
stand-in's. `fit` is `TorchTrainer` with num_workers=0, `script` is `tj run --in-process` and `trainjob.init()`.
"""

"""Checkpoints: staging with the agent, commit to storage, runs, retention, and reading it all back.

Used by the agent (staging in its own process, everything that touches storage through `child.py`), by the launcher and
the command line (`catalogue.py`). Knows nothing of torch, of ranks' processes or of the operator.
"""

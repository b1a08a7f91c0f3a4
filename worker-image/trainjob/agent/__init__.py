"""The agent: the parent process of a worker's ranks. `python -m trainjob.agent -- <the user's command>`.

Standard library only, Python 3.9. It knows the contract and `trainjob.checkpoint`; it never imports the session
library.
"""

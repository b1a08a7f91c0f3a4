"""`mpirun` as a job's command: it runs on worker 0, and the other workers start the daemons that it wants there.

mpirun reaches other machines through a remote shell, which is ssh where nobody says otherwise. Here it is
`remote_shell`, which hands each command line to `mpirun_side` (the parent of mpirun, on worker 0); that hands it to the
worker's `daemon_side`, over a connection on which both have proven that they are of this attempt. `one_rank` becomes
the user's program and tells it its rank. The agent starts `mpirun_side` and `daemon_side` as it starts any launcher
(`agent.processes.rank_command`), and sees by them how the worker's part ended. Nothing of this knows the agent.
"""

from __future__ import annotations

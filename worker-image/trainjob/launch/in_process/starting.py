"""`trainjob.init()`: ask for a job in this process, or find that this process is a rank already. Imports nothing that a
rank would have to pay for.
"""

from __future__ import annotations

import os
from typing import Optional

from trainjob.session.arguments import told
from trainjob.session.context import TrainContext
from trainjob.session.link import link
from trainjob_api import contract


@told
def init(*, name: Optional[str] = None, storage: Optional[str] = None) -> TrainContext:
    """Make a plain `python train.py` a job of one rank in this very process; the rank's place.

    Under `tj run`, `TorchTrainer` or on a cluster this process is a rank already, and nothing happens; under torchrun
    its processes become the ranks of one job. `name`: of the job, which goes on where its last run stopped (absent: a
    new one each time). `storage`: a folder or s3://bucket/folder (absent: ~/trainjob_results). One line on standard
    error says so. Raises LaunchError when it cannot begin.

    ```python
    context = trainjob.init(name="digits")  # `python train.py`: one rank; `tj run train.py`: nothing happens
    print("rank", context.get_world_rank(), "of", context.get_world_size())
    ```
    """
    if not os.environ.get(contract.ENV_AGENT_SOCKET):
        from trainjob.launch.in_process import script

        script.begin(name, storage)
    return link().context

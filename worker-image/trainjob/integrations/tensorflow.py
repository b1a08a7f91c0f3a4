"""TensorFlow over the ranks of a TrainJob: the TF_CONFIG that its strategies read.

```python
trainjob.tensorflow.set_tf_config()
strategy = tensorflow.distribute.MultiWorkerMirroredStrategy()
```

TensorFlow itself is not imported here.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict

from trainjob.integrations.ring import free_port, gathered, joined, own_address
from trainjob.session import calls

__all__ = ["set_tf_config"]

VARIABLE = "TF_CONFIG"


def set_tf_config() -> Dict[str, Any]:
    """Tells TensorFlow of all ranks by the environment variable TF_CONFIG, and gives what it says: `cluster`, with an
    address of each rank under `worker`, and this rank's `task`. Rank 0 is what TensorFlow calls the chief.

    Every rank calls it, before a strategy is made, and anew in each attempt: the ports are those of this attempt. With
    one rank the variable is removed, as no strategy over several is wanted.
    """
    context = calls.get_context()
    if context.world_size == 1:
        os.environ.pop(VARIABLE, None)
        return {}
    workers = gathered(joined(own_address(), free_port()))
    config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": context.rank}}
    os.environ[VARIABLE] = json.dumps(config)
    return config

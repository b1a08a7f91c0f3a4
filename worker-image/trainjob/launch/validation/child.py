"""The process that validates one checkpoint: `python -m trainjob.launch.validation.child PAYLOAD URI RESULT KWARGS`.

Started by `handover.validations`. Calls the user's function and leaves its metrics as JSON; an exception goes to
standard error.
"""

from __future__ import annotations

import json
import os
import sys

from trainjob.launch import worker
from trainjob.launch.errors import LaunchError
from trainjob.session.checkpoint import Checkpoint
from trainjob.session.metrics import plain
from trainjob_api import nonfinite


def main(arguments: list[str]) -> None:
    """Validate."""
    path, uri, result, kwargs = arguments
    from trainjob.launch.handover import payload

    worker.look_where_the_launcher_looked(payload.read_header(path).sys_path)
    worker.import_cloudpickle(os.path.join(os.path.dirname(path), worker.CLOUDPICKLE))
    content = payload.read(path)
    if content.validation is None:
        raise LaunchError(f"{path} holds no ValidationConfig")
    # `elsewhere`: nobody has looked here yet, and storage is at hand.
    checkpoint = Checkpoint.from_restored({"path": uri, "uri": uri, "elsewhere": True})
    metrics = plain(content.validation.fn(checkpoint, **json.loads(kwargs)), "validation")
    with open(result + ".part", "w", encoding="utf-8") as file:
        file.write(nonfinite.dumps(metrics))
    os.replace(result + ".part", result)


if __name__ == "__main__":
    main(sys.argv[1:])

"""What Python puts in front of sys.path for a program: there modules of the user's own are found.

Called by the agent and by ranks, in the place where the program runs. Standard library only, Python 3.9.
"""

from __future__ import annotations

import os
from typing import Optional

_ARCHIVES = (".zip", ".pyz")


def holds_main(path: str) -> bool:
    """Whether Python runs the __main__.py in it, of a folder or an archive."""
    return os.path.isdir(path) or path.endswith(_ARCHIVES)


def folder_of(script: Optional[str], cwd: str) -> str:
    """A script's folder, links followed; a folder or an archive that is run itself; without a script (None: `-m`) the
    working folder.
    """
    if script is None:
        return cwd
    path = os.path.join(cwd, script)
    return path if holds_main(path) else os.path.dirname(os.path.realpath(path))

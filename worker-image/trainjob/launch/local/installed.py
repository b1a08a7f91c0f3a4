"""From where this TrainJob was installed, for commands that install it into another Python."""

from __future__ import annotations

import json
import shlex
from importlib.metadata import PackageNotFoundError, distribution
from urllib.parse import unquote, urlsplit

NAME = "trainjob"


def origin(recorded: str | None = None) -> str:
    """What pip is given: the folder of the clone (`-e FOLDER`), the wheel or the repository that pip has recorded; the
    name where it came from an index. `recorded`: the text of `direct_url.json`; None: that of this installation.
    """
    try:
        text = recorded if recorded is not None else distribution(NAME).read_text("direct_url.json")
        found = json.loads(text or "null")
    except (PackageNotFoundError, ValueError):
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("url"), str):
        return NAME
    url = found["url"]
    if "vcs_info" in found:
        vcs = found["vcs_info"]
        return shlex.quote(f"{vcs.get('vcs', 'git')}+{url}@{vcs.get('commit_id', 'HEAD')}")
    parts = urlsplit(url)
    place = shlex.quote(unquote(parts.path) if parts.scheme == "file" else url)
    return f"-e {place}" if (found.get("dir_info") or {}).get("editable") else place

"""Where another Python gets this TrainJob from."""

from __future__ import annotations

import json

import pytest

from trainjob.launch.local.installed import origin


@pytest.mark.parametrize(
    ("recorded", "given"),
    [
        ({"url": "file:///home/me/train%20job", "dir_info": {"editable": True}}, "-e '/home/me/train job'"),
        ({"url": "file:///home/me/trainjob", "dir_info": {}}, "/home/me/trainjob"),
        ({"url": "file:///w/trainjob-1-py3-none-any.whl", "archive_info": {}}, "/w/trainjob-1-py3-none-any.whl"),
        (
            {"url": "https://example.org/t.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "git+https://example.org/t.git@abc",
        ),
        (None, "trainjob"),
        ("no", "trainjob"),
    ],
)
def test_what_pip_recorded(recorded: object, given: str) -> None:
    assert origin(json.dumps(recorded)) == given

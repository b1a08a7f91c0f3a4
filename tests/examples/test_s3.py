"""The commands of examples/s3/README.md, as they are printed, against a real S3 server."""

from __future__ import annotations

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from support import s3
from support.isolation import ROOT
from support.patience import HANG_S
from support.spoken import said

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")]

PAGE = (ROOT / "examples" / "s3" / "README.md").read_text(encoding="utf-8")


@pytest.mark.timeout(3 * HANG_S)
def test_the_commands_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.use(monkeypatch, s3.endpoint())
    uri = s3.fresh_uri()
    commands = [shlex.split(line) for line in re.findall(r"^tj (.*)$", PAGE, re.MULTILINE)]
    assert [words[0] for words in commands] == ["run", "checkpoints", "model"]
    shown = []
    for words in commands:
        given = [word.replace("s3://my-bucket/runs", uri) for word in words]
        given = [str(ROOT / word) if word.endswith(".py") else word for word in given]
        more = ["--", "--epochs", "2"] if words[0] == "run" else []
        shown.append(said(["-m", "trainjob.cli", *given, *more], tmp_path, limit_s=HANG_S, OMP_NUM_THREADS="1"))
    listed = [line.split()[0] for line in shown[1].splitlines() if re.match(r"\d+-\d+-\d+ ", line)]
    assert listed == ["1-1-1", "1-1-2"], shown[1]
    assert "accuracy=" in shown[1]
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["state.pt"], shown[2]

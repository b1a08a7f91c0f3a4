"""Modules that read a rank's place while a warm parent imports them."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainjob.session.warm import places


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Modules that are imported from there are forgotten; others stay, since NumPy's cannot be loaded twice."""
    monkeypatch.syspath_prepend(tmp_path)
    for name in places.NAMES:
        monkeypatch.delenv(name, raising=False)
    before = dict(sys.modules)
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]
    sys.modules.update(before)


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("os.environ.get('LOCAL_RANK', 0)", ["LOCAL_RANK"]),
        ("os.getenv('WORLD_SIZE')", ["WORLD_SIZE"]),
        ("'RANK' in os.environ", ["RANK"]),
        ("os.environ.setdefault('RANK', '0')", ["RANK", "RANK"]),
        ("os.environ.get('HOME'), os.environ.get('OMP_NUM_THREADS')", []),
        ("os.environ.copy()", [places.ALL]),
        ("{**os.environ}", [places.ALL]),
        ("os.environ | {'MINE': '1'}", [places.ALL]),
        ("[name for name, _ in os.environ.items() if name.startswith('MINE_')]", []),
        ("'MINE' in os.environ.keys()", []),
    ],
)
def test_what_a_module_reads_is_seen(folder: Path, line: str, read: list[str]) -> None:
    (folder / "reads.py").write_text(f"import os\nfound = {line}\n")
    plain = type(os.environ)
    with places.watched() as seen:
        importlib.import_module("reads")
    assert seen == read and type(os.environ) is plain


def test_a_library_that_goes_through_all_variables_for_its_own_keeps_none_of_these(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lightning, and whatever else stands on fsspec, would never be imported ahead."""
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setenv("MASTER_ADDR", "of another")
    for name in [name for name in sys.modules if name.partition(".")[0] == "fsspec"]:
        del sys.modules[name]
    with places.watched() as seen:
        importlib.import_module("fsspec.config")
    assert seen == []
    assert "of another" not in repr(vars(sys.modules["fsspec.config"])["conf"]), fsspec.__version__

    (folder / "copies.py").write_text("import os\nfound = dict(os.environ)\n")
    with places.watched() as seen:
        importlib.import_module("copies")
    assert seen[0] == places.ALL


def test_of_known_modules_a_fork_has_its_own(folder: Path) -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] == "torchmetrics":
            del sys.modules[name]
    (folder / "torchmetrics" / "utilities").mkdir(parents=True)
    (folder / "torchmetrics" / "utilities" / "prints.py").write_text(
        "import os\ndef rank_zero_only(): ...\nrank_zero_only.rank = int(os.environ.get('LOCAL_RANK', 0))\n"
    )
    with places.watched() as seen:
        module = importlib.import_module("torchmetrics.utilities.prints")
    assert seen == [] and module.rank_zero_only.rank == 0
    places.renew({"LOCAL_RANK": "3"})
    assert module.rank_zero_only.rank == 3
    places.renew({})
    assert module.rank_zero_only.rank == 3

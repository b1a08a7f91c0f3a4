"""The training function travels, or is refused naming the variable that cannot."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.patience import HANG_S
from trainjob.launch.errors import ConfigError, LaunchError
from trainjob.launch.handover import payload


def packed(loop: Callable[..., Any], config: dict[str, Any] | None = None, stop: Any = None) -> bytes:
    return payload.dumps(payload.Payload(train_loop=loop, config=config, stop=stop))


def test_a_closure_comes_back_with_its_variables_and_config(tmp_path: Path) -> None:
    rate = 0.25
    path = str(tmp_path / "payload")
    payload.write(
        path, packed(lambda config: rate * config["x"], {"x": 4}), payload.Header(backend="gloo", sys_path=["/a b/ü"])
    )
    found = payload.read(path)
    assert found.train_loop(found.config) == 1.0
    assert payload.read_header(path).sys_path == ["/a b/ü"]
    assert (tmp_path / "payload").stat().st_mode & 0o077 == 0


UNKNOWN = """
def module_level():
    return _helper()

def _helper():
    return "by value"
"""


def test_a_function_of_a_module_that_ranks_cannot_import_travels_by_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "payload")
    unknown = types.ModuleType("of_no_file")
    exec(UNKNOWN, unknown.__dict__)
    monkeypatch.setitem(sys.modules, unknown.__name__, unknown)
    payload.write(path, packed(unknown.module_level), payload.Header())
    roots = [str(Path(payload.__file__).parents[3]), str(Path(sys.modules["trainjob_api"].__file__ or "").parents[1])]
    code = (
        f"import sys; sys.path[:0] = {roots!r}; from trainjob.launch.handover import payload; "
        f"print(payload.read({path!r}).train_loop())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.stdout.strip() == "by value", done.stderr


def test_the_variable_that_cannot_travel_is_named() -> None:
    gate = threading.Lock()

    def inner() -> None:
        gate.acquire()

    def loop() -> None:
        inner()

    with pytest.raises(ConfigError, match=r"'inner -> gate' of type _thread.lock"):
        packed(loop)


def test_the_config_entry_that_cannot_travel_is_named() -> None:
    with pytest.raises(ConfigError, match=r"train_loop_config.*\['tools'\] -> \['gate'\]"):
        packed(len, {"lr": 1, "tools": {"gate": threading.Lock()}})


def test_the_attribute_of_an_object_and_the_argument_of_a_partial_are_named() -> None:
    class Loop:
        def __init__(self) -> None:
            self.gate = threading.Lock()

        def __call__(self) -> None: ...

    with pytest.raises(ConfigError, match="'gate'"):
        packed(Loop())
    with pytest.raises(ConfigError, match="argument 'x'"):
        packed(functools.partial(lambda x: x, x=threading.Lock()))


def test_a_large_closure_warns_and_a_huge_one_is_refused_both_by_name() -> None:
    table = bytes(17 * payload.MIB)
    with pytest.warns(UserWarning, match=r"'table'.*17 MiB"):
        packed(lambda: len(table))
    huge = bytes(65 * payload.MIB)
    with pytest.raises(ConfigError, match=r"train_loop_per_worker=.*'huge' is more than 64 MiB"):
        packed(lambda: len(huge))
    with pytest.raises(ConfigError, match=r"train_loop_config.*\['data'\] is more than 64 MiB") as caught:
        packed(len, {"data": huge})
    assert len(str(caught.value)) < 1000


def test_a_file_that_is_no_payload_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("{}\nrest")
    assert payload.read_header(str(tmp_path / "x")) == payload.Header(python=payload.Header().python)
    (tmp_path / "y").write_text("no json")
    with pytest.raises(LaunchError, match="no payload"):
        payload.read_header(str(tmp_path / "y"))
    with pytest.raises(LaunchError, match="no payload"):
        payload.read_header(str(tmp_path / "absent"))

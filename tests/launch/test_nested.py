"""A module that ranks import and that calls fit() in its own lines is refused, before each rank starts a job."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trainjob.launch import LaunchError, nested
from trainjob_api import contract

RANK = {contract.ENV_AGENT_SOCKET: "/run/agent"}
MODULE = """
from trainjob.launch import nested

def fit(environ):
    nested.refuse(environ)

def main():
    fit({environ})

{call}
"""


@pytest.mark.parametrize(
    ("environ", "call", "line"),
    [(RANK, "main()", 10), (RANK, "fit({})", None), ({}, "main()", None), (RANK, "", None)],
)
def test_a_module_that_calls_fit_as_a_rank_imports_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], call: str, line: int | None
) -> None:
    monkeypatch.setattr(nested, "in_function", True)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "calls_fit.py").write_text(MODULE.format(environ=environ, call=call))
    monkeypatch.delitem(sys.modules, "calls_fit", raising=False)
    if line is None:
        import calls_fit  # type: ignore[import-not-found]

        calls_fit.main()  # in a function that a rank calls: it is meant
        return
    with pytest.raises(
        LaunchError, match=rf'calls_fit.py, line {line} calls fit\(\).*under `if __name__ == "__main__":`'
    ):
        import calls_fit


def test_a_script_that_calls_fit_in_each_of_its_ranks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/work/train.py", "--epochs", "2"])
    monkeypatch.setattr(nested, "in_function", False)
    with pytest.raises(LaunchError, match=r"train.py calls fit\(\) in each of the 2 ranks.*`python train.py`"):
        nested.refuse({**RANK, contract.ENV_WORLD_SIZE: "2"})
    nested.refuse({**RANK, contract.ENV_WORLD_SIZE: "1"})
    nested.refuse({contract.ENV_WORLD_SIZE: "2"})
    monkeypatch.setattr(nested, "in_function", True)
    nested.refuse({**RANK, contract.ENV_WORLD_SIZE: "2"})

"""The written reference is the parser's own."""

from __future__ import annotations

from pathlib import Path

from trainjob.cli.reference import EXIT_CODES, PAGE, page
from trainjob_api import contract

ROOT = Path(__file__).parents[2]


def test_the_page_is_up_to_date() -> None:
    assert (ROOT / PAGE).read_text(encoding="utf-8") == page(), "run `make docs`"


def test_every_exit_code_is_on_it() -> None:
    assert set(EXIT_CODES) == {value for name, value in vars(contract).items() if name.startswith("CLI_")}

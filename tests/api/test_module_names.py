"""Names of modules that agents pass on: as many as there is room for, and nothing that is no name."""

from __future__ import annotations

import pytest

from trainjob_api import contract
from trainjob_api.module_names import names_in, text_of


def test_what_brings_its_package_stands_for_it() -> None:
    told = text_of(["pandas", "transformers", "transformers.models.bert", "transformers.models.bert.modeling", "x.y"])
    assert told == "pandas,transformers.models.bert.modeling,x.y"
    assert names_in(told) == ["pandas", "transformers.models.bert.modeling", "x.y"]


def test_there_is_room_for_so_many() -> None:
    names = [f"package{number}" for number in range(1000)]
    told = text_of(names)
    assert len(told) <= contract.MODULES_LIMIT < len(told) + len(",package999")
    assert names_in(told) == names[-1 - told.count(",") :], "what others import stands before them"
    assert text_of(["x" * (contract.MODULES_LIMIT + 1), "y"]) == "y", "one that is too long is left out alone"
    assert names_in("x" * contract.MODULES_LIMIT + "yz") == ["x" * contract.MODULES_LIMIT], "more is not looked at"


@pytest.mark.parametrize("text", ["", ",", "../os", "os;ls", "a..b", "a b", ".a", "7", "a-b", "a\nb", 7, ["os"]])
def test_nothing_else_is_a_name(text: object) -> None:
    assert names_in(text) == []
    assert text_of(["a", str(text), "b"]) == "a,b"

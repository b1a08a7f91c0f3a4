"""problems.py and plain_json.py: how a problem reads, and what YAML may hold that JSON may not."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from trainjob_api.plain_json import plain
from trainjob_api.problems import ABSENT, InvalidTrainJob, Problem, path_of, quoted


def test_a_problem_names_field_value_and_way_out() -> None:
    assert (
        str(Problem("spec.workers", "2", "must be a whole number"))
        == 'spec.workers: must be a whole number (it is "2")'
    )
    assert str(Problem("spec.template", ABSENT, "is required")) == "spec.template: is required"


def test_the_error_lists_all_problems_and_says_whose() -> None:
    error = InvalidTrainJob([Problem("spec.a", 1, "must go"), Problem("spec.b", ABSENT, "is required")], "digits")
    assert str(error) == 'TrainJob "digits" has 2 problems:\n  spec.a: must go (it is 1)\n  spec.b: is required'
    assert len(error.problems) == 2


def test_a_long_list_is_cut_and_counted() -> None:
    text = str(InvalidTrainJob([Problem(f"f{n}", n, "x") for n in range(25)]))
    assert text.endswith("... and 5 more") and text.startswith("this TrainJob has 25 problems:")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        ("é", '"é"'),
        ({"a": 1}, "a map {a}"),
        ({}, "a map {}"),
        ([{}], "a list of 1"),
        ([1, "x"], '[1, "x"]'),
        ("a\nb", '"a\\nb"'),
        (None, "null"),
    ],
)
def test_values_are_quoted_on_one_line(value: Any, text: str) -> None:
    assert quoted(value) == text


def test_a_huge_value_is_cut() -> None:
    assert len(quoted("x" * 10_000)) == 80
    assert quoted(list(range(10_000))) == "a list of 10000"


def test_terminal_escapes_do_not_pass() -> None:
    assert "\x1b" not in quoted({"\x1b[31m": 1}) and "\x1b" not in quoted("\x1b[31m")


def test_path() -> None:
    assert path_of(("spec", "failurePolicy", "rules", 0, "exitCodes", 1)) == "spec.failurePolicy.rules[0].exitCodes[1]"


@pytest.mark.parametrize(
    ("text", "field", "word"),
    [
        ("a: 2030-01-01", "a", "date"),
        ("a: {b: 2030-01-01T00:00:00Z}", "a.b", "datetime"),
        ("a: {on: 1}", "a", "quotes"),
        ("a: {1: 1}", "a", "quotes"),
        ("a: .inf", "a", "finite"),
        ("a: [.nan]", "a[0]", "finite"),
        ("a: !!binary aGVsbG8=", "a", "bytes"),
        ("a: !!set {x}", "a", "set"),
        ("a: 123456789012345678901234567890", "a", "64 bits"),
        ('a: "\\ud800"', "a", "Unicode"),
    ],
)
def test_what_json_cannot_hold_is_refused_by_name(text: str, field: str, word: str) -> None:
    _, problems = plain(yaml.safe_load(text))
    assert [problem.field for problem in problems] == [field]
    assert word in problems[0].message


def test_a_document_that_contains_itself() -> None:
    _, problems = plain(yaml.safe_load("&a {x: *a}"))
    assert len(problems) == 1 and "anchor" in problems[0].message


def test_a_document_that_unfolds_without_end() -> None:
    text = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
    _, problems = plain(yaml.safe_load(text))
    assert len(problems) == 1 and "anchors" in problems[0].message


def test_plain_json_passes_unchanged() -> None:
    document = {"a": [1, 2.5, "x", None, True, {"b": {}}]}
    copy, problems = plain(document)
    assert copy == document and not problems
    assert copy is not document and copy["a"] is not document["a"]

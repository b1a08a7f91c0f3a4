"""docs/reference/operator.md is what the operator's code says of itself."""

from __future__ import annotations

import inspect
import json
import logging
import sys

from prometheus_client.parser import text_string_to_metric_families

from support.isolation import ROOT
from trainjob_api.reference import documented
from trainjob_operator import __main__ as operator
from trainjob_operator import reference
from trainjob_operator.clock import SystemClock
from trainjob_operator.process import health, settings
from trainjob_operator.process.logs import FIELDS, JsonLines
from trainjob_operator.process.metrics import Metrics


def test_the_page_is_the_generated_one() -> None:
    assert (ROOT / reference.PAGE).read_text(encoding="utf-8") == reference.page(), (
        "the code and docs/reference/ differ: run `make docs`"
    )


def test_make_docs_writes_it() -> None:
    assert "python -m trainjob_operator.reference\n" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_every_flag_variable_and_code_has_a_meaning() -> None:
    rows = [reference._flag_row(action) for action in settings.parser()._actions if action.dest != "help"]
    assert len(rows) >= 14 and [row for row in rows if not row[2]] == []
    for prefix, module in (("ENV_", settings), ("PATH_", health), ("EXIT_", operator)):
        found = documented(prefix, module)
        assert {constant.name for constant in found} == {name for name in vars(module) if name.startswith(prefix)}
        assert [constant.name for constant in found if not constant.text] == []


def test_the_metrics_are_those_of_a_scrape() -> None:
    metrics = Metrics(health.Health(SystemClock()))
    nothing = reference._Nothing()
    metrics.leads(nothing, nothing, nothing)
    metrics.call("watch", "GET", "/api/v1/pods", 200, 0.1)
    listed = {(family.name.removesuffix("_total"), family.kind, family.help) for family in metrics.families()}
    scraped = list(text_string_to_metric_families(metrics.exposition()[0].decode()))
    # Of a counter and a histogram the page of a scrape has the moments of creation as further families.
    assert {
        (family.name, family.type, family.documentation)
        for family in scraped
        if not family.name.endswith("_created") or family.type == "counter"
    } == listed
    labels = {family.name: family.labels for family in metrics.families()}
    calls = next(sample for family in scraped for sample in family.samples if sample.name == "trainjob_api_calls_total")
    assert set(calls.labels) == set(labels["trainjob_api_calls_total"])


def test_the_fields_of_a_line_are_those_that_are_listed() -> None:
    record = logging.LogRecord("trainjob_operator", logging.INFO, __file__, 1, "said", (), None)
    assert set(json.loads(JsonLines().format(record))) == set(FIELDS) - {"job", "why", "error"}
    record.job, record.why = "team/digits", "digits-1 is gone"
    try:
        raise ValueError("odd")
    except ValueError:
        record.exc_info = sys.exc_info()
    assert set(json.loads(JsonLines().format(record))) == set(FIELDS)


def test_the_errors_on_the_page_are_those_that_are_raised() -> None:
    source = inspect.getsource(operator)
    assert "CannotRun(NO_CRD)" in source and "CannotRun(OLD_CRD.format(" in source and "_log.error(NO_SOCKET," in source
    codes = [row[0] for row in reference._endings()]
    assert codes.count(str(operator.EXIT_USAGE)) == 1 and set(codes) == {"1", "2"}

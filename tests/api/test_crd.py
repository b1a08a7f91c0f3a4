"""crd.py, schema.py, cel.py: the CRD is structural, bounded, small, and says of each object what the models say.

No CEL runs here: what the rules decide is written down in `support.trainjobs.RULE_CASES`, which `test_validation.py`
holds against our own checks and which a real API server is to be held against.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from support.structural import at, faults, nodes
from support.trainjobs import RULE_CASES, document
from trainjob_api import cel, contract, crd, schema
from trainjob_api.problems import InvalidTrainJob
from trainjob_api.v1alpha1 import TrainJob
from trainjob_api.validation import parse_trainjob

ROOT = Path(__file__).parents[2]
DOCUMENT = crd.crd_document()
VERSION = DOCUMENT["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]


def strict(node: dict[str, Any]) -> dict[str, Any]:
    """The schema as the API server applies it to `kubectl apply`: int-or-string spelt out, unknown fields refused
    (strict field validation).
    """
    if node.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    result = dict(node)
    if "properties" in node:
        result["properties"] = {name: strict(child) for name, child in node["properties"].items()}
        if not node.get("x-kubernetes-preserve-unknown-fields"):
            result["additionalProperties"] = False
    for word in ("items", "additionalProperties"):
        if isinstance(node.get(word), dict):
            result[word] = strict(node[word])
    return result


VALIDATOR = jsonschema.Draft202012Validator(strict(SCHEMA))


def test_the_schema_is_structural() -> None:
    assert list(faults(SCHEMA)) == [".spec.workers: default is not allowed"], "one default is served, on purpose"
    assert at(SCHEMA, ".spec.workers")["default"] == 1


@pytest.mark.parametrize(
    ("node", "word"),
    [
        ({"type": "object", "properties": {"a": {"$ref": "#/x", "type": "string"}}}, ".a: $ref"),
        ({"type": "object", "properties": {"a": {"anyOf": []}}}, ".a: anyOf"),
        ({"type": "object", "properties": {"a": {"description": "x"}}}, ".a: type"),
        ({"type": "array"}, "items are missing"),
        ({"type": "object"}, "nothing is kept"),
        ({"type": "string", "default": "x"}, "default"),
        (
            {
                "type": "array",
                "items": {"type": "object", "properties": {"t": {"type": "string"}}},
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["t"],
            },
            "neither",
        ),
    ],
)
def test_the_linter_itself_finds_faults(node: dict[str, Any], word: str) -> None:
    assert any(word in fault for fault in faults(node))


def test_it_is_small() -> None:
    """`kubectl apply` keeps it in an annotation, which takes 256 KiB."""
    assert len(crd.crd_text().encode()) < 68 * 1024


def test_every_field_is_described() -> None:
    bare = [
        path
        for path, node in nodes(SCHEMA)
        if "description" not in node and not path.endswith("[]") and path not in ("", ".metadata")
    ]
    assert [path for path in bare if not path.startswith(".spec.template.")] == []


def test_what_rules_walk_through_is_bounded() -> None:
    """Where a rule stands, and for the lists and strings that it looks into: unbounded ones make the API server
    refuse the CRD.
    """
    for rule in cel.RULES:
        node = SCHEMA
        for name in rule.path:
            node = node["properties"][name]
        if node.get("type") == "string":
            assert "maxLength" in node or "enum" in node, rule
    containers = at(SCHEMA, ".spec.template.spec.containers")
    assert containers["maxItems"] == schema.CONTAINERS_LIMIT
    assert at(SCHEMA, ".spec.template.spec.containers[].name")["maxLength"] == 63
    walked = {
        name
        for rule in cel.RULES
        for name in re.findall(r"(\w+(?:\.\w+)*)\.(?:all|exists|exists_one|map|filter)\(", rule.expression)
    }
    assert at(SCHEMA, ".spec.elastic.allowedSizes")["maxItems"] == 64
    assert at(SCHEMA, ".spec.tracking")["maxItems"] == 8
    assert at(SCHEMA, ".spec.tracking[]")["maxLength"] == 500
    assert walked == {"self.template.spec.containers", "self.allowedSizes", "self.tracking"}, (
        "bound the new list in the schema and name it here"
    )


def test_every_rule_is_there_and_says_what_to_change() -> None:
    entries = [entry for _, node in nodes(SCHEMA) for entry in node.get("x-kubernetes-validations", [])]
    assert len(entries) == len(cel.RULES)
    for entry in entries:
        assert re.search(r"\b(must|needs|can be|at most)\b", entry["message"]) and "\n" not in entry["message"]
        assert entry["rule"].count("(") == entry["rule"].count(")")


def test_every_rule_of_the_crd_is_refused_by_some_case() -> None:
    refused = {re.sub(r"\[\d+\].*", "", case.refused_at) for case in RULE_CASES if case.refused_at}
    for rule in cel.RULES:
        path = ".".join(rule.path) + (rule.shown_at or "")
        assert (path or "metadata.name") in refused, f"no case for {path}"


def test_every_refused_case_has_a_rule_at_its_field() -> None:
    shown = {".".join(rule.path) + (rule.shown_at or "") for rule in cel.RULES}
    for case in RULE_CASES:
        assert (
            case.refused_at is None
            or case.refused_at == "metadata.name"
            or any(case.refused_at.startswith(path) for path in shown if path)
        ), case


def test_names_subresources_and_columns() -> None:
    assert DOCUMENT["metadata"]["name"] == "trainjobs.trainjob.dev"
    assert DOCUMENT["spec"]["names"]["shortNames"] == ["tj"] and DOCUMENT["spec"]["names"]["categories"] == [
        "all",
        "ml",
    ]
    assert VERSION["subresources"]["status"] == {}
    columns = {column["name"]: column for column in VERSION["additionalPrinterColumns"]}
    assert list(columns) == [
        "Status",
        "Workers",
        "Step",
        "Progress",
        "Report",
        "Restarts",
        "Age",
        "Reason",
        "Metric",
        "Checkpoint",
        "Goodput",
        "Spares",
        "Attempt",
    ]
    assert [name for name, column in columns.items() if column.get("priority") == 1] == [
        "Reason",
        "Metric",
        "Checkpoint",
        "Goodput",
        "Spares",
        "Attempt",
    ]
    assert columns["Report"]["type"] == "date"


def test_every_path_that_the_crd_names_is_a_field() -> None:
    paths = {path for path, _ in nodes(SCHEMA)}
    named = [column["jsonPath"] for column in crd.COLUMNS if not column["jsonPath"].startswith(".metadata")]
    assert set(named) | set(VERSION["subresources"]["scale"].values()) <= paths


def test_lists_that_kubernetes_merges() -> None:
    conditions = at(SCHEMA, ".status.conditions")
    assert conditions["x-kubernetes-list-type"] == "map" and conditions["x-kubernetes-list-map-keys"] == ["type"]
    assert at(SCHEMA, ".spec.failurePolicy.rules[].exitCodes")["x-kubernetes-list-type"] == "set"


def test_special_forms() -> None:
    assert at(SCHEMA, ".spec.processesPerWorker")["x-kubernetes-int-or-string"] is True
    assert at(SCHEMA, ".spec.template")["x-kubernetes-preserve-unknown-fields"] is True
    assert at(SCHEMA, ".status.progress.lastReportTime") == {
        "description": "When the last report was.",
        "type": "string",
        "format": "date-time",
    }
    assert at(SCHEMA, ".spec.suspend")["type"] == "boolean"
    assert "nullable" not in str(SCHEMA)


def test_a_construct_without_structural_form_is_refused() -> None:
    with pytest.raises(ValueError, match="no structural form"):
        schema._structural({"anyOf": [{"type": "object"}, {"type": "string"}]}, {})
    with pytest.raises(ValueError, match="patternProperties"):
        schema._structural({"type": "object", "patternProperties": {}}, {})


@pytest.mark.parametrize("case", [case for case in RULE_CASES if case.refused_at is None], ids=lambda case: case.name)
def test_valid_objects_fit_the_schema(case: Any) -> None:
    VALIDATOR.validate(document(case.changes))


def test_what_the_models_write_fits_the_schema() -> None:
    status = {
        "conditions": [
            {"type": "Suspended", "status": "True", "reason": "Suspended", "lastTransitionTime": "2030-01-01T00:00:00Z"}
        ],
        "attempt": {
            "number": 1,
            "state": "Running",
            "startedAt": "2030-01-01T00:00:00Z",
            "members": "0-1",
            "workers": 2,
            "worldSize": 2,
            "cause": "Started",
        },
        "failures": {"strikes": {"3": 1}, "avoidNodes": ["a"]},
        "progress": {"metrics": {"loss": 0.5}, "lastReportTime": "2030-01-01T00:00:00Z"},
        "checkpoint": {"latest": {"id": "1-1-1", "bytes": 3}, "count": 1},
        "lastFailure": {"attempt": 1, "time": "2030-01-01T00:00:00Z", "reason": "UserCodeError"},
        "history": [{"attempt": 1, "cause": "Started", "startedAt": "2030-01-01T00:00:00Z", "worldSize": 2}],
    }
    job = TrainJob.model_validate(document({"status": status}))
    VALIDATOR.validate(job.to_json())


@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples").rglob("*.yaml")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_examples_are_valid(path: Path) -> None:
    jobs = [
        doc
        for doc in yaml.safe_load_all(path.read_text())
        if isinstance(doc, dict) and doc.get("kind") == contract.KIND
    ]
    for job in jobs:
        VALIDATOR.validate(job)
        parse_trainjob(job)


VALUES: dict[str, list[Any]] = {
    "workers": [1, 3, 2.0, True, "2", 10**6],
    "processesPerWorker": [1, 4, "auto", "4", 2.0, False],
    "rendezvous": [{}, {"port": 2000}, {"port": "2000"}, {"backend": "gloo", "timeoutSeconds": 1.0}],
    "checkpoint": [
        {},
        {"storage": "/a", "keep": 1},
        {"keep": "1"},
        {"staging": {"sizeLimit": 20}},
        {"staging": {"sizeLimit": "1Gi", "medium": "Memory"}},
    ],
    "failurePolicy": [
        {},
        {"maxFailures": -1},
        {"rules": [{"exitCodes": [1], "action": "Ignore"}]},
        {"rules": [{"exitCodes": ["1"], "action": "Fail"}]},
    ],
    "runtime": [{}, {"agent": "Disabled"}, {"agent": True}, {"spareWorkers": 1}, {"spareWorkers": "1"}],
    "tracking": [[], ["csv"], ["mlflow=x", "csv"], "csv", ["csv", "csv"], [1]],
    "suspend": [True, False, "true", 0],
    "ttlSecondsAfterFinished": [0, 5, "5", 0.5],
    "podCleanup": ["All", "None", "all", ""],
}


@given(st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in VALUES.items()}))
def test_what_we_accept_the_schema_accepts_as_it_was_written(changes: dict[str, Any]) -> None:
    """A file that runs locally is not refused by a cluster for its shape."""
    written = document({f"spec.{name}": value for name, value in changes.items()})
    try:
        job = parse_trainjob(written)
    except InvalidTrainJob:
        return
    VALIDATOR.validate(written)
    VALIDATOR.validate(job.to_json())

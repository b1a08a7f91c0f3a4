"""What the chart and its page repeat is what stands elsewhere: the CRD, the values and their schema."""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support import chart
from support.by_path import module_at
from support.chart import kinds, only, render
from support.isolation import ROOT
from trainjob_api import crd

pytestmark = pytest.mark.timeout(900)  # helm may have to be built first


generate = module_at(ROOT / "helm" / "generate.py")
VALUES_TEXT = (chart.CHART / "values.yaml").read_text(encoding="utf-8")
VALUES = yaml.safe_load(VALUES_TEXT)
SCHEMA = json.loads((chart.CHART / "values.schema.json").read_text(encoding="utf-8"))
FREE = {"podSecurityContext", "resources"}
"""Objects that Kubernetes defines: one text for the whole, its parts are not ours."""


def test_the_crd_template_is_the_generated_one() -> None:
    committed = (chart.CHART / "templates" / "crd.yaml").read_text(encoding="utf-8")
    assert committed == generate.crd_template(crd.crd_text()), "crds/ and the chart differ: run `make chart`"


def test_the_table_of_values_is_the_generated_one() -> None:
    committed = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    assert committed == generate.page(committed, VALUES_TEXT), (
        "values.yaml and docs/install.md differ: run `make chart`"
    )


def test_the_rendered_crd_is_the_models_crd_and_stays_at_an_uninstall() -> None:
    rendered = only(render(), "CustomResourceDefinition")
    assert rendered["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert rendered["spec"] == crd.crd_document()["spec"]
    assert rendered["metadata"]["name"] == crd.crd_document()["metadata"]["name"]


def test_the_crd_can_be_left_out() -> None:
    assert "CustomResourceDefinition" not in kinds(render("crds.install=false"))


def test_braces_in_a_description_survive_helm(tmp_path: Path) -> None:
    document = crd.crd_document()
    described = document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    described["description"] = "Either {{ .Values.x }} or `{{`, and }} after."
    copy = tmp_path / "trainjob"
    shutil.copytree(chart.CHART, copy)
    (copy / "templates" / "crd.yaml").write_text(generate.crd_template(yaml.safe_dump(document, sort_keys=False)))
    assert only(render(chart=copy), "CustomResourceDefinition")["spec"] == document["spec"]


def _leaves(tree: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and value and path not in FREE:
            yield from _leaves(value, f"{path}.")
        else:
            yield path


def test_every_value_is_documented_once() -> None:
    assert list(generate.documented(VALUES_TEXT)) == list(_leaves(VALUES))
    assert VALUES_TEXT.count("# -- ") == len(list(_leaves(VALUES)))


def test_values_and_schema_name_the_same() -> None:
    def named(schema: dict[str, Any], values: dict[str, Any], prefix: str = "") -> Iterator[str]:
        for key, inner in schema["properties"].items():
            path = f"{prefix}{key}"
            default = values.get(key)
            if "properties" in inner and isinstance(default, dict) and path not in FREE:
                assert inner["additionalProperties"] is False, f"{path} lets misspelt values through"
                yield from named(inner, default, f"{path}.")
            else:
                yield path

    assert SCHEMA["additionalProperties"] is False
    # Helm itself adds `global`.
    assert set(named(SCHEMA, VALUES)) - {"global"} == set(_leaves(VALUES))


def test_the_versions_are_the_packages() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    described = yaml.safe_load((chart.CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert (described["version"], described["appVersion"]) == (version, version)

"""What is generated from the code is what stands in the repository."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from rich import console

from support.isolation import ROOT
from support.patience import HANG_S
from trainjob_api import contract, crd, reference

KINDS = ("ENV_", "LABEL_", "ANNOTATION_", "EXIT_", "CLI_", "REASON_")


def test_the_crd_is_the_generated_one() -> None:
    committed = (ROOT / "crds" / "trainjob.dev_trainjobs.yaml").read_text(encoding="utf-8")
    assert committed == crd.crd_text(), "the models and crds/ differ: run `make crds`"


def test_the_fields_of_pods_are_those_of_the_kubernetes_package() -> None:
    run = subprocess.run(
        [sys.executable, "crds/pod_fields.py"], cwd=ROOT, capture_output=True, text=True, timeout=HANG_S, check=True
    )
    committed = (ROOT / "operator" / "trainjob_api" / "pod_fields.json").read_text(encoding="utf-8")
    assert committed == run.stdout, "the kubernetes package and pod_fields.json differ: run `make crds`"


@pytest.mark.parametrize("page", sorted(reference.PAGES))
def test_the_reference_pages_are_the_generated_ones(page: str) -> None:
    committed = (ROOT / "docs" / "reference" / f"{page}.md").read_text(encoding="utf-8")
    assert committed == reference.PAGES[page](), "the code and docs/reference/ differ: run `make docs`"


def test_the_crd_module_prints_it() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "trainjob_api.crd"],
        cwd=ROOT / "operator",
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=True,
    )
    assert run.stdout == crd.crd_text()


def test_the_reference_module_prints_a_page() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "trainjob_api.reference", "contract"],
        cwd=ROOT / "operator",
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=True,
    )
    assert run.stdout == reference.contract_page()


@pytest.mark.parametrize("prefix", KINDS)
def test_every_constant_of_a_kind_has_a_text(prefix: str) -> None:
    found = reference.documented(prefix)
    assert {constant.name for constant in found} == {name for name in vars(contract) if name.startswith(prefix)}
    assert [constant.name for constant in found if not constant.text] == [], "write a docstring under it in contract.py"


@pytest.mark.parametrize("prefix", KINDS)
def test_no_two_constants_of_a_kind_share_a_value(prefix: str) -> None:
    values = [constant.value for constant in reference.documented(prefix)]
    assert len(values) == len(set(values))


def test_the_agents_exit_codes_are_its_own() -> None:
    """0, or 80 to 89: what a user's program ends with by itself is elsewhere."""
    assert all(constant.value == 0 or 80 <= int(constant.value) <= 89 for constant in reference.documented("EXIT_"))


def test_variables_that_others_named_stand_in_the_code() -> None:
    """In ours, or in rich's, which colours what we print."""
    sources = [*(ROOT / "operator").rglob("*.py"), *(ROOT / "worker-image").rglob("*.py"), Path(console.__file__)]
    code = "\n".join(path.read_text(encoding="utf-8") for path in sources if path.name != "reference.py")
    assert [name for name in reference.OTHERS if f'"{name}"' not in code] == []


def test_tables_show_every_field_of_a_spec() -> None:
    page = reference.trainjob_page()
    assert (
        "`spec.failurePolicy.rules[].exitCodes`" in page
        and "| `29500` |" in page
        and "`status.lastFailure.traceback`" in page
    )

"""docs/kubernetes.md and docs/install.md say what the code says: conditions, reasons, metrics, added names, Helm
commands.
"""

from __future__ import annotations

import re

import pytest
import yaml

from support import chart
from support.chart import render
from support.isolation import ROOT
from trainjob_api import contract, reference
from trainjob_api.validation import parse_trainjob
from trainjob_operator.core.pods import objects

pytestmark = pytest.mark.timeout(900)  # helm may have to be built first

KUBERNETES = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
INSTALL = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")


def section(page: str, title: str) -> str:
    return page.split(f"# {title}\n", 1)[1].split("\n#", 1)[0]


def words(text: str) -> set[str]:
    return set(re.findall(r"`([A-Z]\w+)`", text))


def test_conditions_and_reasons_are_the_operators() -> None:
    rows = [line.split("|") for line in section(KUBERNETES, "Conditions").splitlines() if line.startswith("| `")]
    source = (ROOT / "operator" / "trainjob_operator" / "core" / "conditions.py").read_text(encoding="utf-8")
    assert set().union(*(words(row[1]) for row in rows)) == set(re.findall(r'"([A-Z]\w+)": _', source))
    reasons = {constant.value for constant in reference.documented("REASON_")}
    named = set().union(*(words(row[2]) | words(row[3]) for row in rows))
    assert named - {"Failed"} <= reasons


def test_what_keeps_workers_from_coming_up_is_in_the_table() -> None:
    table = words(section(KUBERNETES, "Conditions"))
    for reason in (
        contract.REASON_IMAGE_PULL,
        contract.REASON_VOLUME_MOUNT,
        contract.REASON_QUOTA,
        contract.REASON_UNSCHEDULABLE,
        contract.REASON_GANG,
    ):
        assert reason in table


def test_metrics_are_the_operators() -> None:
    named = set(re.findall(r"`(trainjob_\w+)", section(KUBERNETES, "Watching the operator")))
    source = (ROOT / "operator" / "trainjob_operator" / "process" / "metrics.py").read_text(encoding="utf-8")
    assert named and {name for name in named if f'"{name.removesuffix("_total")}"' not in source} == set()


def test_what_is_added_to_pods_has_its_names() -> None:
    added = section(KUBERNETES, "What is created for a job")
    for name in (
        contract.RUNTIME_CONTAINER,
        contract.RUNTIME_START,
        contract.RUNTIME_DIR,
        contract.WORK_DIR,
        contract.TOKEN_DIR,
    ):
        assert f"`{name}" in added
    assert f"for {objects.DEAD_NODE_SECONDS} s" in added


def test_names_that_stay_after_an_uninstall() -> None:
    stays = section(INSTALL, "Uninstall")
    assert f"Secret `{contract.COORDINATOR_SECRET}`" in stays and f"Lease `{contract.LEASE_NAME}`" in stays


@pytest.mark.parametrize("page", ["README.md", "docs/install.md"])
def test_the_settings_of_helm_commands_are_values_of_the_chart(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ")
    commands = [line for line in text.splitlines() if line.startswith(("helm install ", "helm upgrade "))]
    assert commands
    for command in commands:
        assert render(*re.findall(r"--set '?([^'\s]+)'?", command))


def test_the_example_is_a_job_that_the_api_takes_and_its_script_is_where_it_looks() -> None:
    job = parse_trainjob(yaml.safe_load((ROOT / "examples" / "digits" / "trainjob.yaml").read_text(encoding="utf-8")))
    pod = job.spec.template["spec"]
    (trainer,) = pod["containers"]
    (volume,) = pod["volumes"]
    assert volume["configMap"]["name"] in (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"{trainer['volumeMounts'][0]['mountPath']}/train.py" == f"/workspace/{trainer['command'][1]}"
    assert (ROOT / trainer["command"][1]).is_file()
    version = yaml.safe_load((chart.CHART / "Chart.yaml").read_text(encoding="utf-8"))["appVersion"]
    assert trainer["image"] == f"trainjob-worker:{version}"

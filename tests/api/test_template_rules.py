"""template_rules.py: what would collide with what the operator adds to pods with an agent."""

from __future__ import annotations

from typing import Any

import pytest

from support.trainjobs import document
from trainjob_api import contract
from trainjob_api.problems import InvalidTrainJob
from trainjob_api.validation import parse_trainjob

TRAINER = "spec.template.spec.containers.0"
AT = "spec.template.spec.containers[0]"
PLAIN = {"spec.runtime": {"agent": "Disabled"}}


def mount(path: str) -> dict[str, Any]:
    return {f"{TRAINER}.volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "mine", "mountPath": path}]}


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        (
            {"spec.template.spec.initContainers": [{"name": contract.RUNTIME_CONTAINER}]},
            "spec.template.spec.initContainers[0].name",
            "choose another name",
        ),
        (
            {"spec.template.spec.volumes": [{"name": "a"}, {"name": "trainjob-work"}]},
            "spec.template.spec.volumes[1].name",
            "choose another name",
        ),
        (
            {"spec.template.spec.volumes": [{"name": "trainjob-shm"}]},
            "spec.template.spec.volumes[0].name",
            "choose another name",
        ),
        (mount("/trainjob"), f"{AT}.volumeMounts[1].mountPath", "must be outside /trainjob"),
        (mount("/trainjob/data"), f"{AT}.volumeMounts[1].mountPath", "must be outside /trainjob"),
        (mount("/var/lib/trainjob/"), f"{AT}.volumeMounts[1].mountPath", "must be outside /var/lib/trainjob"),
        (mount(contract.TOKEN_DIR), f"{AT}.volumeMounts[1].mountPath", "must be outside"),
    ],
)
def test_what_collides_with_ours_is_refused_and_in_plain_mode_nothing_does(
    changes: dict[str, Any], field: str, says: str
) -> None:
    with pytest.raises(InvalidTrainJob) as refused:
        parse_trainjob(document(changes))
    (problem,) = refused.value.problems
    assert problem.field == field and says in problem.message
    parse_trainjob(document({**changes, **PLAIN}))


@pytest.mark.parametrize(
    "changes",
    [
        mount("/trainjob-data"),
        mount("/dev/shm"),
        mount("/var/lib"),
        {"spec.template.spec.volumes": [{"name": "trainjob-data"}]},
    ],
)
def test_what_only_looks_alike_is_accepted(changes: dict[str, Any]) -> None:
    parse_trainjob(document(changes))


def test_a_template_without_a_command_needs_plain_mode() -> None:
    with pytest.raises(InvalidTrainJob, match=r"command.*is required.*agent: Disabled"):
        parse_trainjob(document({f"{TRAINER}.command": []}))
    parse_trainjob(document({f"{TRAINER}.command": [], **PLAIN}))

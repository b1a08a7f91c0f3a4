"""Options of the command line over a document."""

from __future__ import annotations

from typing import Any

import pytest

from trainjob.cli.overlay import Options, overlay


def document() -> dict[str, Any]:
    containers = [{"name": "sidecar"}, {"name": "trainer", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}]
    return {
        "metadata": {"name": "digits"},
        "spec": {"workers": 4, "checkpoint": {"storage": "/ckpt", "keep": 2}, "template": {"spec": {"containers": containers}}},
    }


def test_no_option_changes_nothing() -> None:
    assert overlay(document(), Options()) == document()


def test_every_option_reaches_its_field_and_the_rest_stays() -> None:
    given = Options(name="n", workers=2, processes_per_worker=3, storage="/here", fresh=True, max_failures=0)
    result = overlay(document(), given)
    assert result["metadata"]["name"] == "n"
    assert result["spec"]["workers"] == 2
    assert result["spec"]["processesPerWorker"] == 3
    assert result["spec"]["checkpoint"] == {"storage": "/here", "keep": 2, "resumeFrom": "none"}
    assert result["spec"]["failurePolicy"] == {"maxFailures": 0}


def test_the_given_document_is_not_touched() -> None:
    original = document()
    overlay(original, Options(name="n", env=[("A", "9")]))
    assert original == document()


def test_environment_goes_to_the_trainer_and_replaces_its_own() -> None:
    containers = overlay(document(), Options(env=[("A", "9"), ("C", "x=y")]))["spec"]["template"]["spec"]["containers"]
    assert containers[0] == {"name": "sidecar"}
    assert containers[1]["env"] == [{"name": "B", "value": "2"}, {"name": "A", "value": "9"}, {"name": "C", "value": "x=y"}]


@pytest.mark.parametrize(
    "broken",
    [{}, {"spec": None}, {"spec": {"checkpoint": "s3", "template": {"spec": {"containers": []}}}}, {"spec": {"template": {"spec": {"containers": ["x"]}}}}],
)
def test_what_makes_no_sense_is_left_to_validation(broken: dict[str, Any]) -> None:
    overlay(broken, Options(storage="/x", keep=1, env=[("A", "1")]))

"""A container's environment as a kubelet resolves it."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from trainjob.launch.errors import LaunchError
from trainjob.launch.local import environment

POD: dict[str, Any] = {"metadata": {"name": "digits-0", "namespace": "default", "uid": "u-1", "labels": {"a/b": "x"}}}


def test_fields_and_references_are_resolved_in_order() -> None:
    container = {
        "env": [
            {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a/b']"}}},
            {"name": "BOTH", "value": "$(NAME)-$(LABEL)-$(LATER)-$$(NAME)-$5"},
            {"name": "LATER", "value": "z"},
            {"name": "EMPTY"},
        ]
    }
    found = environment.container_env(POD, container, {"BASE": "1", "NAME": "overridden"})
    assert found == {
        "BASE": "1",
        "NAME": "digits-0",
        "LABEL": "x",
        "BOTH": "digits-0-x-$(LATER)-$(NAME)-$5",
        "LATER": "z",
        "EMPTY": "",
    }


def test_what_this_machine_cannot_provide_is_named() -> None:
    container = {"env": [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}
    with pytest.raises(LaunchError, match="KEY comes from secretKeyRef"):
        environment.container_env(POD, container, {})


def test_credentials_from_a_secret_are_the_users_own_on_this_machine() -> None:
    container = {
        "env": [
            {
                "name": "AWS_ACCESS_KEY_ID",
                "valueFrom": {"secretKeyRef": {"name": "s3-keys", "key": "AWS_ACCESS_KEY_ID"}},
            }
        ]
    }
    assert environment.container_env(POD, container, {"AWS_ACCESS_KEY_ID": "mine"}) == {"AWS_ACCESS_KEY_ID": "mine"}
    assert environment.container_env(POD, container, {}) == {}


def test_a_launcher_inside_another_job_does_not_pass_its_place_on() -> None:
    given = {
        "RANK": "1",
        "MASTER_ADDR": "x",
        "TRAINJOB_AGENT_SOCKET": "/s",
        "PET_NNODES": "2",
        "TRAINJOB_BARRIER_WARN_SECONDS": "5",
        "HOME": "/h",
    }
    assert environment.inherited(given) == {"TRAINJOB_BARRIER_WARN_SECONDS": "5", "HOME": "/h"}


def test_this_interpreter_comes_first() -> None:
    found = environment.with_packages({"PATH": "/bin", "PYTHONPATH": "/mine"})
    assert found["PATH"].split(os.pathsep)[0] == os.path.dirname(sys.executable)
    assert found["PYTHONPATH"].split(os.pathsep)[0] == "/mine"

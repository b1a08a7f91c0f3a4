"""The agent's environment, read once."""

from __future__ import annotations

import json

import pytest

from trainjob.agent.config import AgentConfig, BadConfig, Endpoint, read
from trainjob_api import contract

GOOD = {
    contract.ENV_NAMESPACE: "default",
    contract.ENV_JOB: "digits",
    contract.ENV_JOB_UID: "uid",
    contract.ENV_SLOT: "3",
    contract.ENV_POD_NAME: "digits-3",
    contract.ENV_POD_UID: "pod-uid",
    contract.ENV_POD_ADDRESS: "10.0.0.3",
    contract.ENV_COORDINATOR: "http://coordinator:8080",
    contract.ENV_WORK_DIR: "/work",
    contract.ENV_AGENT_SPEC: json.dumps({"processes_per_worker": 2, "storage": "/mnt/default/digits", "keep": 3}),
}


def config(**changes: str) -> AgentConfig:
    return read({**GOOD, **changes}, ["--", "python", "train.py", "--lr", "1"])


def test_a_worker_is_known_by_its_node_and_by_its_name_where_all_are_on_one_machine() -> None:
    assert config().place == "digits-3"
    assert config(**{contract.ENV_NODE_NAME: "gpu-b"}).place == "gpu-b"
    assert config(**{contract.ENV_NODE_NAME: "vm", contract.ENV_SHARED_TMP: "/tmp/x"}).place == "digits-3"


def test_what_the_operator_sets_is_taken_over() -> None:
    c = config()
    assert (c.slot, c.host, c.spec.processes, c.spec.storage, c.spec.keep) == (
        3,
        "10.0.0.3",
        2,
        "/mnt/default/digits",
        3,
    )
    assert c.command == ("python", "train.py", "--lr", "1")
    assert (c.parent_fd, c.any_master_port, c.token_file) == (None, False, None)
    assert c.barrier_warn_s == contract.BARRIER_WARN_S


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("http://127.0.0.1:4000", Endpoint(False, "127.0.0.1", 4000, "")),
        ("https://coordinator.trainjob.svc", Endpoint(True, "coordinator.trainjob.svc", 443, "")),
        ("http://[::1]:4000", Endpoint(False, "::1", 4000, "")),
        ("http://[::1]", Endpoint(False, "::1", 80, "")),
        ("http://host:1/base", Endpoint(False, "host", 1, "/base")),
    ],
)
def test_coordinator_urls(url: str, endpoint: Endpoint) -> None:
    assert config(**{contract.ENV_COORDINATOR: url}).coordinator == endpoint


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        (contract.ENV_SLOT, "-1", "no whole number"),
        (contract.ENV_SLOT, "", "not set"),
        (contract.ENV_COORDINATOR, "coordinator:80", "no URL"),
        (contract.ENV_COORDINATOR, "ftp://coordinator", "no URL"),
        (contract.ENV_WORK_DIR, "work", "no absolute path"),
        (contract.ENV_AGENT_SPEC, "[]", "no AgentSpec"),
        (contract.ENV_AGENT_SPEC, '{"keep": "many"}', "no AgentSpec"),
        (contract.ENV_BARRIER_WARN_S, "soon", "no number of seconds"),
        (contract.ENV_PARENT_FD, "x", "no whole number"),
    ],
)
def test_what_is_wrong_is_named(name: str, value: str, word: str) -> None:
    with pytest.raises(BadConfig, match=f"{name}.*{word}"):
        config(**{name: value})

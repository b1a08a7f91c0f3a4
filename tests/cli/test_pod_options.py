"""What `tj submit` says about pods: over a script's job and over a manifest's template; what is there stays."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from support.trainjobs import document
from trainjob.cli.argument_types import label, secret_key, toleration
from trainjob.cli.cluster import pod_options
from trainjob.cli.cluster.pod_options import PodOptions, SecretVariable
from trainjob.cli.errors import CommandError
from trainjob_api.contract import CLI_USAGE
from trainjob_api.validation import parse_trainjob


def pods(options: PodOptions, template: dict[str, Any] | None = None) -> dict[str, Any]:
    job = document()
    job["spec"]["template"]["spec"].update(template or {})
    found = pod_options.put(job, options)
    parse_trainjob(found)
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return (
        {**spec, "labels": (found["metadata"].get("labels"), found["spec"]["template"]["metadata"].get("labels"))}
        if ("metadata" in found["spec"]["template"])
        else spec
    )


def test_where_pods_may_run() -> None:
    spec = pods(
        PodOptions(
            node_selector=[label("gpu=h100")],
            tolerations=[toleration("nvidia.com/gpu"), toleration("team=ml:NoSchedule")],
            service_account="trainer",
        ),
        {"nodeSelector": {"zone": "a"}, "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]},
    )
    assert spec["nodeSelector"] == {"zone": "a", "gpu": "h100"}
    assert spec["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists"},
        {"key": "team", "operator": "Equal", "value": "ml", "effect": "NoSchedule"},
    ]
    assert spec["serviceAccountName"] == "trainer"


def test_what_ranks_get_from_secrets() -> None:
    options = PodOptions(
        secrets=["hub"], secret_variables=[SecretVariable(*secret_key("TOKEN=hub:token"))], pull_secrets=["registry"]
    )
    spec = pods(options, {"imagePullSecrets": [{"name": "registry"}]})
    trainer = spec["containers"][0]
    assert trainer["envFrom"] == [{"secretRef": {"name": "hub"}}]
    assert {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}} in trainer["env"]
    assert spec["imagePullSecrets"] == [{"name": "registry"}]


def test_labels_are_the_jobs_and_its_pods() -> None:
    assert pods(PodOptions(labels=[("team", "ml")]))["labels"] == ({"team": "ml"}, {"team": "ml"})


def test_a_restricted_namespace_takes_the_pods_and_what_the_template_says_stays() -> None:
    spec = pods(PodOptions(restricted=True), {"securityContext": {"runAsUser": 4711}})
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 4711,
        "fsGroup": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert spec["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }


def test_without_options_nothing_changes_and_a_broken_template_is_left_to_validation() -> None:
    assert pod_options.put(document(), PodOptions()) == document()
    broken = {"metadata": {"name": "x"}, "spec": {"template": {"spec": {"containers": "none"}}}}
    assert pod_options.put(broken, PodOptions(restricted=True, labels=[("a", "b")])) == broken


@pytest.mark.parametrize("metadata", [None, {"labels": None}], ids=["no metadata", "no labels"])
def test_what_a_template_leaves_empty_costs_no_option(metadata: dict[str, Any] | None) -> None:
    job = document()
    job["spec"]["template"]["metadata"] = metadata
    parse_trainjob(job)
    found = pod_options.put(job, PodOptions(labels=[("team", "ml")], restricted=True, service_account="trainer"))
    template = found["spec"]["template"]
    assert (template["metadata"], template["spec"]["serviceAccountName"]) == ({"labels": {"team": "ml"}}, "trainer")
    assert template["spec"]["securityContext"]["runAsNonRoot"] is True


def test_options_that_cannot_be_put_over_a_valid_job_are_refused_by_name() -> None:
    wrong: Any = ["no pair"]
    with pytest.raises(CommandError, match=r"--label, --restricted cannot be put into spec\.template") as refused:
        pod_options.put(document(), PodOptions(labels=wrong, restricted=True))
    assert refused.value.code == CLI_USAGE


def test_a_template_is_found_in_whatever_holds_one() -> None:
    template = {"spec": {"containers": [{"name": "trainer"}], "tolerations": []}}
    assert pod_options.template_of([template], "f") == template
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"a": "b"}}, **template}
    assert pod_options.template_of([pod], "f") == {"metadata": {"labels": {"a": "b"}}, **template}
    assert pod_options.template_of([{"kind": "TrainJob", "spec": {"template": template}}], "f") == template
    for wrong in ([], [template, template], [{"data": {}}], ["text"]):
        with pytest.raises(CommandError, match="f holds no pod template"):
            pod_options.template_of(wrong, "f")


@pytest.mark.parametrize("text", ["gpu", "=x", "a b=c", "a=b c", "UP/er=x", "a=" + "x" * 64])
def test_labels_that_kubernetes_refuses_are_refused_here(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="KEY=VALUE of a label"):
        label(text)


@pytest.mark.parametrize("text", ["", ":NoSchedule", "a:Never", "=b"])
def test_taints_that_are_none(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        toleration(text)


@pytest.mark.parametrize("text", ["A", "A=b", "A=b:", "=b:c", "A=:c"])
def test_secret_variables_that_are_none(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="NAME=SECRET:KEY"):
        secret_key(text)

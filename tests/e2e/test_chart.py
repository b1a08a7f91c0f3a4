"""The chart on a cluster: install, upgrade, uninstall under a running job, install again; cluster-wide and in
namespaces; people's rights.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from support import chart, e2e, outages, pages, release
from support.release import operator
from trainjob_api import contract

__all__ = ["operator"]

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("operator"), pytest.mark.timeout(1200)]

LONG = ("--epochs", "2000")
"""Longer than any test takes."""


@pytest.fixture
def as_it_was() -> Iterator[None]:
    """For tests that take the release away: it is there again afterwards."""
    yield
    release.install()


def may(user: str, verb: str, what: str, namespace: str) -> bool:
    """`what`: a resource, or resource/subresource (which kubectl would take for a resource's name)."""
    resource, _, part = what.partition("/")
    words = [verb, resource, *([f"--subresource={part}"] if part else [])]
    try:
        return e2e.kubectl("auth", "can-i", *words, "-n", namespace, f"--as={user}").strip() == "yes"
    except e2e.KubectlError:
        return False


def refusal(*words: str) -> str:
    with pytest.raises(e2e.KubectlError) as caught:
        e2e.kubectl(*words)
    return str(caught.value)


def in_shell(line: str) -> str:
    """A line as a user types it, in the repository's root."""
    environment = {**os.environ, "PATH": f"{chart.helm().parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", line], cwd=e2e.ROOT, env=environment, capture_output=True, text=True, timeout=e2e.PATIENCE_S
    )
    assert done.returncode == 0, f"{line}: {done.stderr}{done.stdout}"
    return done.stdout


def counted(job: dict[str, Any]) -> int:
    return int(job["status"].get("failures", {}).get("counted", 0))


def step(job: dict[str, Any]) -> int:
    """That the operator last heard of."""
    return int(job["status"].get("progress", {}).get("step", 0))


def test_one_replica_leads_and_workers_are_led_to_it() -> None:
    def led() -> bool:
        leading = next((pod for pod in release.pods() if pod["metadata"]["name"] == release.leader()), None)
        slice_ = e2e.get("endpointslice", contract.COORDINATOR_SERVICE, release.NAMESPACE)
        return leading is not None and slice_["endpoints"][0]["addresses"] == [leading["status"]["podIP"]]

    e2e.eventually("the Service leads to the leader", led)
    outages.wait_for_replicas()


def test_the_operator_fits_into_a_restricted_namespace() -> None:
    label = "pod-security.kubernetes.io/enforce=restricted"
    said = e2e.kubectl("label", "namespace", release.NAMESPACE, label, "--overwrite", "--dry-run=server", "-o", "name")
    assert "violate" not in said
    e2e.kubectl("label", "namespace", release.NAMESPACE, label, "--overwrite")
    release.install(f"podAnnotations.rolled-out={uuid.uuid4().hex}")


def test_an_upgrade_disturbs_no_training(namespace: str) -> None:
    e2e.apply(e2e.training_job("digits", namespace, arguments=LONG))
    e2e.wait_for_step("digits", namespace, 45)
    workers, operators = e2e.uids("digits", namespace), {pod["metadata"]["uid"] for pod in release.pods()}
    release.install(f"podAnnotations.rolled-out={uuid.uuid4().hex}", "logs.level=debug")
    e2e.eventually("only new operator pods", lambda: not operators & {pod["metadata"]["uid"] for pod in release.pods()})
    before = e2e.job("digits", namespace)
    e2e.eventually("progress reaches the new leader", lambda: step(e2e.job("digits", namespace)) > step(before))
    job = e2e.job("digits", namespace)
    assert job["status"]["attempt"]["number"] == 1 and counted(job) == 0
    assert e2e.uids("digits", namespace) == workers


def test_an_upgrade_leaves_each_replica_on_a_node_of_its_own(namespace: str) -> None:
    """Also where one node has less to do, which is the one that each new pod would take: its loss would take all."""
    if len(outages.workers()) < 2:
        pytest.skip("this cluster has one node for pods")
    outages.wait_for_replicas()
    asked = {"requests": {"cpu": "800m", "memory": "2Gi"}}
    e2e.apply(e2e.pod_on_node("ballast", namespace, outages.workers()[0], "sleep", "600", resources=asked))
    e2e.eventually("a node is laden", lambda: e2e.condition(e2e.get("pod", "ballast", namespace), "Ready"))
    for _ in range(2):
        release.install(f"podAnnotations.rolled-out={uuid.uuid4().hex}")
        outages.wait_for_replicas()
        assert len({pod["spec"]["nodeName"] for pod in release.pods()}) == 2


@pytest.mark.usefixtures("as_it_was")
def test_jobs_outlive_an_uninstall_and_are_picked_up_again(namespace: str) -> None:
    e2e.apply(e2e.training_job("digits", namespace, arguments=LONG))
    e2e.wait_for_step("digits", namespace, 45)
    workers = e2e.uids("digits", namespace)
    release.uninstall()
    e2e.kubectl("get", "crd", f"{contract.PLURAL}.{contract.GROUP}")
    seen = e2e.wait_for_step("digits", namespace, 1)
    e2e.wait_for_step("digits", namespace, seen + 90)
    assert e2e.uids("digits", namespace) == workers
    e2e.kill_rank("digits-1", namespace, 1)
    release.install()
    e2e.eventually("the ranks run again", lambda: e2e.job("digits", namespace)["status"]["attempt"]["number"] == 2)
    before = e2e.job("digits", namespace)
    e2e.eventually("training goes on", lambda: step(e2e.job("digits", namespace)) > step(before))
    assert counted(e2e.job("digits", namespace)) == 1
    assert e2e.uids("digits", namespace) == workers


@pytest.mark.usefixtures("as_it_was")
def test_a_namespaced_operator_serves_its_namespace_alone(namespace: str) -> None:
    release.uninstall()
    other = e2e.create_namespace("not-served")
    try:
        release.install("scope=namespaces", f"namespaces={{{namespace}}}")
        for where in (namespace, other):
            e2e.apply(e2e.training_job("digits", where, arguments=("--epochs", "2")))
        e2e.wait_for_condition("digits", namespace, "Complete")
        assert "status" not in e2e.job("digits", other) and e2e.pods("digits", other) == []
        release.uninstall()
    finally:
        e2e.delete_namespace(other)


def test_viewers_only_view_and_editors_edit(namespace: str) -> None:
    for user, role in (("vera", "trainjob-viewer"), ("edda", "trainjob-editor"), ("vito", "view"), ("edgar", "edit")):
        e2e.kubectl("create", "rolebinding", user, f"--clusterrole={role}", f"--user={user}", "-n", namespace)
    e2e.eventually(
        "all bindings count, and Kubernetes' own roles have taken ours in",
        lambda: (
            all(may(user, "list", contract.PLURAL, namespace) for user in ("vera", "vito"))
            and all(may(user, "delete", contract.PLURAL, namespace) for user in ("edda", "edgar"))
        ),
    )
    e2e.apply(e2e.training_job("digits", namespace, arguments=LONG))
    e2e.wait_for_step("digits", namespace, 1)
    for user in ("vera", "vito"):
        assert "digits" in e2e.kubectl("get", "tj", "-n", namespace, f"--as={user}")
        assert "rank 0" in e2e.kubectl("logs", "digits-0", "-n", namespace, f"--as={user}")
        assert "cannot delete resource" in refusal("delete", "tj", "digits", "-n", namespace, f"--as={user}")
        assert "cannot patch resource" in refusal("scale", "tj/digits", "--replicas=1", "-n", namespace, f"--as={user}")
    for user in ("edda", "edgar"):
        assert "cannot patch resource" in refusal(
            "patch", "tj", "digits", "--subresource=status", "--type=merge", "-p", "{}", "-n", namespace, f"--as={user}"
        )
    e2e.kubectl(
        "patch", "tj", "digits", "--type=merge", "-p", '{"spec":{"suspend":true}}', "-n", namespace, "--as=edda"
    )
    e2e.kubectl("delete", "tj", "digits", "-n", namespace, "--as=edgar")


@pytest.mark.usefixtures("as_it_was")
def test_the_readme_word_by_word() -> None:
    """Its lines in a shell, from the installation on; `-w` for a moment only."""
    block = next(block for block in pages.blocks(e2e.ROOT / "README.md") if block.not_run == "needs a cluster")
    # The suite has its cluster and its KUBECONFIG.
    lines = [
        line.split("#")[0].strip()
        for line in block.body.splitlines()
        if not line.startswith(("make ", "export KUBECONFIG="))
    ]
    assert [line.split()[:2] for line in lines] == [
        ["helm", "install"],
        ["kubectl", "create"],
        ["kubectl", "apply"],
        ["kubectl", "get"],
    ]
    release.uninstall()
    try:
        for line in lines[:-1]:
            in_shell(line)
        assert lines[-1].endswith(" -w")
        # It never ends by itself: its first line suffices.
        assert "STATUS" in in_shell(f'read -r head < <({lines[-1]}); echo "$head"; kill $! 2>/dev/null || true')
        e2e.wait_for_condition("digits", "default", "Complete")
    finally:
        in_shell(
            "kubectl delete -f examples/digits/trainjob.yaml --ignore-not-found; kubectl delete configmap "
            "digits-code --ignore-not-found"
        )


def test_the_operator_itself_holds_few_rights() -> None:
    account = f"system:serviceaccount:{release.NAMESPACE}:{release.NAME}"
    assert may(account, "create", "pods", "default")
    for verb, what in (
        ("list", "secrets"),
        ("get", "secrets"),
        ("update", "pods"),
        ("create", "pods/exec"),
        ("update", contract.PLURAL),
        ("delete", "services"),
        ("patch", "nodes"),
        ("delete", "nodes"),
    ):
        assert not may(account, verb, what, "default"), f"{verb} {what}"

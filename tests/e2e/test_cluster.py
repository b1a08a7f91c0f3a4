"""The cluster itself holds what the other tests take for granted: names, limits, exec, logs, torch, and nodes that
die and come back.
"""

from __future__ import annotations

import pytest

from support import e2e


def workers() -> list[str]:
    names = [
        node["metadata"]["name"] for node in e2e.listed("nodes", "default", "!node-role.kubernetes.io/control-plane")
    ]
    assert len(names) >= 2, f"two workers are needed, found {names}"
    return names


def is_ready(name: str, namespace: str) -> bool:
    return e2e.condition(e2e.get("pod", name, namespace), "Ready") is not None


def test_pods_on_two_nodes_find_each_other_by_name(namespace: str) -> None:
    first, second = workers()[:2]
    web = {"ports": [{"port": 80, "targetPort": 8000}], "selector": {"app": "web"}}
    ready = {"readinessProbe": {"tcpSocket": {"port": 8000}, "periodSeconds": 1}}
    e2e.apply(
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": namespace}, "spec": web},
        e2e.pod_on_node("web", namespace, first, "python", "-m", "http.server", "8000", **ready),
        e2e.pod_on_node("client", namespace, second, "sleep", "600"),
    )
    e2e.eventually("both pods are ready", lambda: is_ready("web", namespace) and is_ready("client", namespace))
    ask = f"import urllib.request; print(urllib.request.urlopen('http://web.{namespace}.svc', timeout=5).status)"
    assert (
        e2e.eventually(
            "the service answers", lambda: e2e.in_pod("client", namespace, "python", "-c", ask, container="main")
        ).strip()
        == "200"
    )
    e2e.eventually("the request is in the log", lambda: "GET / HTTP" in e2e.logs("web", namespace, container="main"))


def test_memory_limit_is_enforced(namespace: str) -> None:
    limits = {"resources": {"limits": {"memory": "64Mi"}}}
    e2e.apply(
        e2e.pod_on_node(
            "glutton", namespace, workers()[0], "python", "-c", "x = bytearray(200 << 20); print(len(x))", **limits
        )
    )
    e2e.eventually("the pod fails", lambda: e2e.get("pod", "glutton", namespace)["status"]["phase"] == "Failed")
    ended = e2e.get("pod", "glutton", namespace)["status"]["containerStatuses"][0]["state"]["terminated"]
    # On a busy machine the word that memory was the reason comes after the end, and is not waited for by containerd.
    assert ended["reason"] in ("OOMKilled", "Error") and ended["exitCode"] == 137


def test_torch_is_there_and_storage_is_shared(namespace: str) -> None:
    first, second = workers()[:2]
    folder = {"volumeMounts": [{"name": "shared", "mountPath": "/data"}]}
    volume = {"name": "shared", "hostPath": {"path": f"{e2e.SHARED}/{namespace}", "type": "DirectoryOrCreate"}}
    writer = e2e.pod_on_node(
        "writer", namespace, first, "python", "-c", "import torch; torch.save(torch.arange(3), '/data/x.pt')", **folder
    )
    reader = e2e.pod_on_node(
        "reader", namespace, second, "python", "-c", "import torch; print(torch.load('/data/x.pt').tolist())", **folder
    )
    for document in (writer, reader):
        document["spec"]["volumes"] = [volume]
        e2e.apply(document)
        name = document["metadata"]["name"]
        e2e.eventually(
            f"{name} ends",
            lambda name=name: e2e.get("pod", name, namespace)["status"]["phase"] in ("Succeeded", "Failed"),
        )
    assert e2e.logs("reader", namespace, container="main").strip() == "[0, 1, 2]"


@pytest.mark.alone
@pytest.mark.usefixtures("all_nodes")
def test_killed_node_is_noticed_and_comes_back(namespace: str) -> None:
    if not e2e.has_own_nodes():
        pytest.skip("the nodes of this cluster are not this machine's containers")
    victim = workers()[1]
    e2e.kill_node(victim)
    e2e.eventually(f"{victim} is not Ready", lambda: not e2e.is_node_ready(victim))
    e2e.restore_nodes()
    e2e.apply(e2e.pod_on_node("again", namespace, victim, "sleep", "600"))
    e2e.eventually("a pod runs there again", lambda: is_ready("again", namespace))

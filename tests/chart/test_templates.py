"""What the chart makes of its values."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from support import chart
from support.chart import Object, kinds, only, operator_container, operator_pod, refusal, render
from trainjob_api import contract
from trainjob_operator.process.settings import read_settings

pytestmark = pytest.mark.timeout(900)  # helm may have to be built first

CLUSTER_SCOPED = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "PriorityClass"}
EVERYTHING = ("serviceMonitor.enabled=true", "networkPolicy.enabled=true", "priorityClass.create=true")
POD_ENVIRONMENT = {"POD_NAME": "operator-0", "POD_NAMESPACE": chart.NAMESPACE, "POD_IP": "10.0.0.7"}


def test_the_chart_passes_helm_lint() -> None:
    done = chart.run_helm("lint", "--strict", str(chart.CHART))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "settings",
    [(), EVERYTHING, ("scope=namespaces", "namespaces={team-a,team-b}", *EVERYTHING)],
    ids=["plain", "everything", "namespaced"],
)
def test_every_object_is_where_it_belongs(settings: tuple[str, ...]) -> None:
    for each in render(*settings):
        namespace = each["metadata"].get("namespace")
        if each["kind"] in CLUSTER_SCOPED:
            assert namespace is None
        else:
            assert namespace in (chart.NAMESPACE, "team-a", "team-b")
        assert each["metadata"]["labels"]["app.kubernetes.io/instance"] == chart.RELEASE
        assert each["metadata"]["labels"]["helm.sh/chart"] == "trainjob-0.1.0"


@pytest.mark.parametrize("name", ["2024", "true", "null"])
def test_names_that_look_like_something_else_are_names(name: str, tmp_path: Path) -> None:
    """Of the release, of its namespace, of one that it serves, of a priority class."""
    values = {"scope": "namespaces", "namespaces": [name], "priorityClassName": name}
    objects = render(*EVERYTHING, values=values, tmp_path=tmp_path, release=name, namespace=name)
    namespaced = [each for each in objects if each["kind"] not in CLUSTER_SCOPED]
    assert {each["metadata"]["namespace"] for each in namespaced} == {name}
    assert {each["metadata"]["labels"]["app.kubernetes.io/instance"] for each in objects} == {name}
    assert {subject["namespace"] for each in objects for subject in each.get("subjects", [])} == {name}
    template = operator_pod(objects)
    assert template["metadata"]["labels"]["app.kubernetes.io/instance"] == name
    assert template["spec"]["priorityClassName"] == name
    assert (
        only(objects, "Service", "trainjob-operator-metrics")["spec"]["selector"]["app.kubernetes.io/instance"] == name
    )


def test_no_object_comes_twice() -> None:
    named = [
        (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in render(*EVERYTHING)
    ]
    assert len(named) == len(set(named))


# --- The operator's pods ----------------------------------------------------------------------------------------------


def test_the_operator_takes_the_arguments_as_they_are_meant() -> None:
    words = (
        "scope=namespaces",
        "namespaces={team-a,team-b}",
        "concurrency=7",
        "logs.format=text",
        "logs.level=debug",
        "image.pullPolicy=Always",
        "image.tag=t1",
    )
    settings = read_settings(operator_container(render(*words))["args"], POD_ENVIRONMENT)
    assert settings.namespaces == ("team-a", "team-b")
    assert (settings.workers, settings.log_format, settings.log_level) == (7, "text", "debug")
    assert (settings.runtime_image, settings.runtime_pull_policy) == ("trainjob-runtime:t1", "Always")
    assert settings.leader_election


def test_the_defaults_serve_all_namespaces_on_the_agreed_ports() -> None:
    objects = render()
    settings = read_settings(operator_container(objects)["args"], POD_ENVIRONMENT)
    assert settings.namespaces == ()
    assert (settings.coordinator_port, settings.metrics_port) == (contract.COORDINATOR_PORT, contract.METRICS_PORT)
    assert (
        settings.coordinator_url
        == f"https://{contract.COORDINATOR_SERVICE}.{chart.NAMESPACE}.svc:{contract.COORDINATOR_PORT}"
    )
    ports = {port["name"]: port["containerPort"] for port in operator_container(objects)["ports"]}
    assert ports == {"coordinator": contract.COORDINATOR_PORT, "metrics": contract.METRICS_PORT}


def test_another_coordinator_address_is_passed_on() -> None:
    settings = read_settings(
        operator_container(render("coordinatorUrl=https://tj.example.org:8443"))["args"], POD_ENVIRONMENT
    )
    assert settings.coordinator_url == "https://tj.example.org:8443"


def test_what_the_operator_reads_of_its_pod_is_there() -> None:
    fields = {each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"] for each in operator_container(render())["env"]}
    assert fields == {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace", "POD_IP": "status.podIP"}


def test_the_probes_ask_the_operators_own_routes() -> None:
    container = operator_container(render())
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "metrics"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}


def test_an_upgrade_never_takes_the_working_pod_first() -> None:
    assert only(render(), "Deployment")["spec"]["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
    }


def test_the_pods_meet_the_restricted_pod_security_standard() -> None:
    spec, container = operator_pod(render())["spec"], operator_container(render())
    assert spec["securityContext"]["runAsNonRoot"] is True and spec["securityContext"]["runAsUser"] == 65532
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    assert [set(volume) - {"name"} for volume in spec["volumes"]] == [{"emptyDir"}]


def test_a_fixed_user_can_be_left_to_the_cluster() -> None:
    context = operator_pod(render("podSecurityContext.runAsUser=null", "podSecurityContext.fsGroup=null"))["spec"][
        "securityContext"
    ]
    assert "runAsUser" not in context and "fsGroup" not in context and context["runAsNonRoot"] is True


IMAGES = {
    "as built": ((), "trainjob-operator:0.1.0"),
    "a tag": (("image.tag=v7",), "trainjob-operator:v7"),
    "a registry": (
        ("image.registry=registry.internal:5000/ml", "image.tag=v7"),
        "registry.internal:5000/ml/trainjob-operator:v7",
    ),
    "a slash at its end": (("image.registry=registry.internal/",), "registry.internal/trainjob-operator:0.1.0"),
    "a digest": (
        ("image.operator=trainjob-operator@sha256:" + "a" * 64, "image.tag=v7"),
        "trainjob-operator@sha256:" + "a" * 64,
    ),
}


@pytest.mark.parametrize("case", IMAGES, ids=IMAGES.keys())
def test_images(case: str) -> None:
    settings, expected = IMAGES[case]
    container = operator_container(render(*settings))
    assert container["image"] == expected
    if "digest" not in case:
        assert f"--runtime-image={expected.replace('operator', 'runtime')}" in container["args"]


def test_where_and_how_the_pods_run_is_the_installers_choice(tmp_path: Path) -> None:
    them = {"matchLabels": {"app.kubernetes.io/component": "operator"}}
    spread = [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": them}]
    chosen: Object = {
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "system", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "topologySpreadConstraints": spread,
        "priorityClassName": "system-cluster-critical",
    }
    more: Object = {
        "podLabels": {"team": "ml"},
        "podAnnotations": {"note": "1"},
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy"}],
        "image": {"pullSecrets": [{"name": "login"}]},
        "resources": {"limits": {"memory": "1Gi"}},
        "replicas": 3,
    }
    objects = render(values={**chosen, **more}, tmp_path=tmp_path)
    pod, container = operator_pod(objects), operator_container(objects)
    assert {name: pod["spec"][name] for name in chosen} == chosen
    assert pod["spec"]["imagePullSecrets"] == [{"name": "login"}]
    assert pod["metadata"]["labels"]["team"] == "ml" and pod["metadata"]["annotations"]["note"] == "1"
    assert {"name": "HTTPS_PROXY", "value": "http://proxy"} in container["env"]
    assert container["resources"]["limits"]["memory"] == "1Gi"
    assert only(objects, "Deployment")["spec"]["replicas"] == 3


def test_the_pods_are_spread_over_nodes_by_themselves() -> None:
    (constraint,) = operator_pod(render())["spec"]["topologySpreadConstraints"]
    assert constraint["topologyKey"] == "kubernetes.io/hostname" and constraint["whenUnsatisfiable"] == "ScheduleAnyway"
    assert constraint["matchLabelKeys"] == ["pod-template-hash"], "pods of the revision that goes do not count"


def test_a_spread_of_the_installers_is_of_these_pods_unless_it_says_of_which(tmp_path: Path) -> None:
    """Without a selector it would spread nothing, and `matchLabelKeys` beside none are refused."""
    zones = {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"}
    keys: Object = {"matchLabelKeys": ["pod-template-hash"]}
    all_pods: Object = {"labelSelector": {}}
    given = [{**zones, **keys}, {**zones, "labelSelector": None}, {**zones, **all_pods}]
    objects = render(values={"topologySpreadConstraints": given, "replicas": 3}, tmp_path=tmp_path)
    ours = {"labelSelector": {"matchLabels": only(objects, "Deployment")["spec"]["selector"]["matchLabels"]}}
    constraints = operator_pod(objects)["spec"]["topologySpreadConstraints"]
    assert constraints == [{**zones, **keys, **ours}, {**zones, **ours}, {**zones, **all_pods}]


# --- What finds the pods ----------------------------------------------------------------------------------------------


def test_selectors_meet_the_pods() -> None:
    objects = render(*EVERYTHING)
    labels = operator_pod(objects)["metadata"]["labels"].items()
    selectors = [
        only(objects, "Deployment")["spec"]["selector"]["matchLabels"],
        only(objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        only(objects, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        only(objects, "Service", "trainjob-operator-metrics")["spec"]["selector"],
        *(each["labelSelector"]["matchLabels"] for each in operator_pod(objects)["spec"]["topologySpreadConstraints"]),
    ]
    for selector in selectors:
        assert selector and selector.items() <= labels


def test_labels_of_the_installers_take_the_place_of_ours_but_for_those_that_find_the_pods(tmp_path: Path) -> None:
    ours, version = "app.kubernetes.io/name", "app.kubernetes.io/version"
    objects = render(values={"podLabels": {ours: "mine", version: "mine", "team": "ml"}}, tmp_path=tmp_path)
    labels = operator_pod(objects)["metadata"]["labels"]
    assert (labels[ours], labels[version], labels["team"]) == ("trainjob", "mine", "ml")


def test_annotations_and_labels_of_the_installers_take_the_place_of_ours(tmp_path: Path) -> None:
    container, instance = "kubectl.kubernetes.io/default-container", "app.kubernetes.io/instance"
    values = {
        "podAnnotations": {container: "mine", "note": "1"},
        "serviceMonitor": {"enabled": True, "labels": {instance: "mine"}},
    }
    objects = render(values=values, tmp_path=tmp_path)
    assert operator_pod(objects)["metadata"]["annotations"] == {container: "mine", "note": "1"}
    assert only(objects, "ServiceMonitor")["metadata"]["labels"][instance] == "mine"
    assert operator_pod(render())["metadata"]["annotations"] == {container: "operator"}


def test_the_coordinators_service_has_no_selector() -> None:
    service = only(render(), "Service", contract.COORDINATOR_SERVICE)
    assert "selector" not in service["spec"]
    assert [port["port"] for port in service["spec"]["ports"]] == [contract.COORDINATOR_PORT]


def test_the_service_monitor_finds_the_metrics_port_alone() -> None:
    objects = render(
        "serviceMonitor.enabled=true", "serviceMonitor.labels.release=prometheus", "serviceMonitor.interval=15s"
    )
    monitor = only(objects, "ServiceMonitor")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    (endpoint,) = monitor["spec"]["endpoints"]
    assert (endpoint["path"], endpoint["interval"]) == ("/metrics", "15s")
    found = [
        service["metadata"]["name"]
        for service in objects
        if service["kind"] == "Service"
        and monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        and endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    ]
    assert found == ["trainjob-operator-metrics"]


def test_the_network_policy_lets_in_agents_and_the_scraper(tmp_path: Path) -> None:
    peers = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    policy = only(
        render(values={"networkPolicy": {"enabled": True, "metricsFrom": peers}}, tmp_path=tmp_path), "NetworkPolicy"
    )
    agents, scraper = policy["spec"]["ingress"]
    assert agents["ports"] == [{"port": contract.COORDINATOR_PORT, "protocol": "TCP"}]
    (agent,) = agents["from"]
    assert agent["namespaceSelector"] == {} and agent["podSelector"]["matchExpressions"] == [
        {"key": contract.LABEL_JOB, "operator": "Exists"}
    ]
    assert scraper == {"ports": [{"port": contract.METRICS_PORT, "protocol": "TCP"}], "from": peers}
    assert sorted({port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]}) == [53, 443, 6443]


def test_the_network_policy_of_a_namespaced_installation_names_its_namespaces() -> None:
    policy = only(render("networkPolicy.enabled=true", "scope=namespaces", "namespaces={team-a}"), "NetworkPolicy")
    (agent,) = policy["spec"]["ingress"][0]["from"]
    assert agent["namespaceSelector"]["matchExpressions"][0]["values"] == ["team-a"]


# --- What is there only on demand -------------------------------------------------------------------------------------


def test_optional_objects_are_left_out() -> None:
    assert not kinds(render()) & {"ServiceMonitor", "NetworkPolicy", "PriorityClass"}
    assert "PodDisruptionBudget" not in kinds(render("podDisruptionBudget.enabled=false"))
    assert "priorityClassName" not in operator_pod(render())["spec"]


def test_drains_take_one_pod_at_a_time_and_are_never_blocked() -> None:
    assert only(render("replicas=1"), "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def test_a_priority_class_that_is_made_is_used() -> None:
    objects = render("priorityClass.create=true", "priorityClass.value=5000")
    made = only(objects, "PriorityClass")
    assert only(render("priorityClass.create=true"), "PriorityClass")["value"] == 1_000_000, "in digits"
    assert made["value"] == 5000 and made["globalDefault"] is False
    assert operator_pod(objects)["spec"]["priorityClassName"] == made["metadata"]["name"]


# --- What is refused --------------------------------------------------------------------------------------------------

BAD = {
    "a misspelt value": ("image.tagg=1", "'tagg' not allowed"),
    "a value of another chart": ("operator.replicas=1", "'operator' not allowed"),
    "an unknown scope": ("scope=all", "/scope': value must be one of 'cluster', 'namespaces'"),
    "a pull policy": (
        "image.pullPolicy=always",
        "/image/pullPolicy': value must be one of 'Always', 'IfNotPresent', 'Never'",
    ),
    "a tag with a colon": ("image.tag=a:b", "/image/tag"),
    "a URL for a registry": ("image.registry=https://registry.internal", "/image/registry"),
    "a tag in the image's name": ("image.operator=trainjob-operator:1", "/image/operator"),
    "a word for a number": ("replicas=two", "/replicas': got string, want integer"),
    "too many replicas": ("replicas=50", "/replicas': maximum: got 50, want 5"),
    "no turn at all": ("concurrency=0", "/concurrency': minimum"),
    "a log level": ("logs.level=verbose", "/logs/level"),
    "a namespace that cannot be": ("namespaces={Team_A}", "/namespaces/0"),
    "plain http": ("coordinatorUrl=http://somewhere", "/coordinatorUrl"),
    "no port": ("coordinatorUrl=https://somewhere:notaport", "/coordinatorUrl"),
    "a port that cannot be": ("coordinatorUrl=https://somewhere:65536", "/coordinatorUrl"),
    "a priority of the system's": ("priorityClass.value=2000000000", "/priorityClass/value"),
    "an interval without unit": ("serviceMonitor.interval=xx", "/serviceMonitor/interval"),
    "a port out of range": ("networkPolicy.apiServerPorts={70000}", "/networkPolicy/apiServerPorts/0"),
    "no namespaces": ("scope=namespaces", "list those to serve"),
    "namespaces for all": ("namespaces={team-a}", "add --set scope=namespaces"),
}


@pytest.mark.parametrize("case", BAD, ids=BAD.keys())
def test_bad_values_are_refused_with_their_name(case: str) -> None:
    setting, expected = BAD[case]
    assert expected in refusal(setting)


VALUES = yaml.safe_load((chart.CHART / "values.yaml").read_text(encoding="utf-8"))
MAY_BE_EMPTY = {
    "image.registry",
    "image.tag",
    "image.pullSecrets",
    "namespaces",
    "coordinatorUrl",
    "resources",
    "podSecurityContext",
    "nodeSelector",
    "tolerations",
    "affinity",
    "topologySpreadConstraints",
    "priorityClassName",
    "podAnnotations",
    "podLabels",
    "extraEnv",
    "serviceAccount.annotations",
    "serviceMonitor.labels",
    "networkPolicy.metricsFrom",
}
NEEDED = {
    path
    for name, group in VALUES.items()
    for path in (name, *(f"{name}.{part}" for part in (group if isinstance(group, dict) else ())))
    if not {name, path} & MAY_BE_EMPTY
}
"""Without one of these the operator could not begin, or the cluster would choose: one replica, every port."""


@pytest.mark.parametrize("value", sorted(NEEDED))
def test_a_value_that_is_needed_cannot_be_taken_away(value: str) -> None:
    """As `null` does, and a key in a values file with nothing behind it."""
    assert f"missing property '{value.rpartition('.')[2]}'" in refusal(f"{value}=null")


def test_every_other_value_may_be_empty() -> None:
    assert kinds(render(*EVERYTHING, *(f"{value}=null" for value in sorted(MAY_BE_EMPTY)))) == kinds(
        render(*EVERYTHING)
    )


# --- The notes --------------------------------------------------------------------------------------------------------


def notes(tmp_path: Path, *settings: str) -> str:
    """Helm shows them to an installation alone, for which it wants a cluster; so a copy of the chart has them as an
    object.
    """
    copy = tmp_path / "trainjob"
    shutil.copytree(chart.CHART, copy)
    text = (copy / "templates" / "NOTES.txt").read_text(encoding="utf-8")
    (copy / "templates" / "_notes.tpl").write_text('{{ define "notes" }}' + text + "{{ end }}")
    (copy / "templates" / "notes.yaml").write_text(
        '{kind: Notes, metadata: {name: notes}, text: {{ include "notes" . | toJson }}}'
    )
    shown: str = only(render(*settings, chart=copy), "Notes")["text"]
    return shown


def test_the_notes_name_the_next_commands(tmp_path: Path) -> None:
    text = notes(tmp_path)
    assert "kubectl -n trainjob-system rollout status deployment/trainjob-operator" in text
    assert "kubectl apply -f" in text and "kubectl get tj -w" in text
    assert "crds/" not in text


def test_the_notes_of_a_namespaced_installation_without_the_crd(tmp_path: Path) -> None:
    text = notes(tmp_path, "scope=namespaces", "namespaces={team-a,team-b}", "crds.install=false")
    assert "serves team-a, team-b" in text and "kubectl get tj -n team-a -w" in text
    assert "kubectl apply -f crds/trainjob.dev_trainjobs.yaml" in text

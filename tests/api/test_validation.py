"""validation.py, shape.py, template_rules.py: each fault is named by field and value, with what would be right."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from support.trainjobs import REMOVED, RULE_CASES, RuleCase, document, json_values
from trainjob_api import shape
from trainjob_api.problems import ABSENT, InvalidTrainJob, Problem
from trainjob_api.v1alpha1 import TrainJob, TrainJobSpec
from trainjob_api.validation import parse_trainjob, validate_spec

TRAINER = "spec.template.spec.containers.0"
AT = "spec.template.spec.containers[0]"
IN_S3 = {"spec.checkpoint.storage": "s3://bucket/x"}


def problems_of(doc: Any) -> list[Problem]:
    try:
        parse_trainjob(doc)
    except InvalidTrainJob as error:
        return list(error.problems)
    return []


def only(changes: dict[str, Any]) -> Problem:
    """The one problem of the document with these changes."""
    found = problems_of(document(changes))
    assert len(found) == 1, [str(problem) for problem in found]
    return found[0]


def test_a_valid_document_gives_its_object() -> None:
    job = parse_trainjob(
        document({"spec.checkpoint.storage": "/c", "spec.failurePolicy.rules": [{"exitCodes": [42], "action": "Fail"}]})
    )
    assert job.metadata.name == "digits" and job.spec.workers == 2
    assert job.spec.failure_policy.rules[0].exit_codes == [42]
    assert job.spec.template == document()["spec"]["template"]


def test_what_was_parsed_is_parsed_again() -> None:
    job = parse_trainjob(document({"spec.checkpoint.storage": "/c", "spec.processesPerWorker": 2}))
    assert parse_trainjob(job.to_json()) == job


def test_the_template_comes_through_untouched() -> None:
    template = {
        "metadata": {"labels": {"a": "b"}},
        "spec": {
            "containers": [{"name": "x", "command": ["python", "t.py"], "odd": {"a": None, "b": [1.5]}}],
            "new": 1,
        },
    }
    assert parse_trainjob(document({"spec.template": template})).spec.template == template


@pytest.mark.parametrize(
    ("changes", "field", "value", "says"),
    [
        ({"spec.workers": "2"}, "spec.workers", "2", "whole number, without quotes"),
        ({"spec.workers": 2.5}, "spec.workers", 2.5, "whole number"),
        ({"spec.workers": 0}, "spec.workers", 0, "at least 1"),
        ({"spec.workers": 20000}, "spec.workers", 20000, "at most 10000"),
        ({"spec.workers": True}, "spec.workers", True, "whole number"),
        ({"spec.workers": [2]}, "spec.workers", [2], "whole number"),
        ({"spec.suspend": "yes"}, "spec.suspend", "yes", "true or false, without quotes"),
        ({"spec.suspend": 1}, "spec.suspend", 1, "true or false"),
        ({"spec.template": []}, "spec.template", [], "must be a map"),
        ({"spec.template": REMOVED}, "spec.template", ABSENT, "is required: a pod template"),
        ({"spec.template": None}, "spec.template", ABSENT, "is required: a pod template"),
        ({"spec": None}, "spec", ABSENT, "is required"),
        ({"spec": []}, "spec", [], "must be a map"),
        ({"metadata": REMOVED}, "metadata", ABSENT, "is required"),
        ({"metadata": {}}, "metadata.name", ABSENT, "is required"),
        ({"metadata.name": 12}, "metadata.name", 12, "must be text"),
        ({"metadata.labels": {"a": 1}}, "metadata.labels.a", 1, "put it in quotes"),
        ({"spec.processesPerWorker": "four"}, "spec.processesPerWorker", "four", "whole number of at least 1, or auto"),
        ({"spec.processesPerWorker": 0}, "spec.processesPerWorker", 0, "whole number of at least 1, or auto"),
        (
            {"spec.processesPerWorker": {"int": 1}},
            "spec.processesPerWorker",
            {"int": 1},
            "whole number of at least 1, or auto",
        ),
        (
            {"spec.failurePolicy.rules": {"exitCodes": [1]}},
            "spec.failurePolicy.rules",
            {"exitCodes": [1]},
            "must be a list",
        ),
        (
            {"spec.failurePolicy.rules": [{"exitCodes": [], "action": "Fail"}]},
            "spec.failurePolicy.rules[0].exitCodes",
            [],
            "at least 1 item",
        ),
        (
            {"spec.failurePolicy.rules": [{"exitCodes": [7, 256], "action": "Fail"}]},
            "spec.failurePolicy.rules[0].exitCodes[1]",
            256,
            "at most 255",
        ),
        (
            {"spec.failurePolicy.rules": [{"exitCodes": [7], "action": "fail"}]},
            "spec.failurePolicy.rules[0].action",
            "fail",
            "did you mean Fail?",
        ),
        (
            {"spec.failurePolicy.rules": [{"exitCodes": [7]}]},
            "spec.failurePolicy.rules[0].action",
            ABSENT,
            "is required",
        ),
        (
            {"spec.runtime.agent": "disabled"},
            "spec.runtime.agent",
            "disabled",
            "one of auto, Disabled; did you mean Disabled?",
        ),
        ({"spec.tracking": ["comet"]}, "spec.tracking[0]", "comet", "one of csv, tensorboard, mlflow, wandb, or that"),
        ({"spec.tracking": ["tensorbord"]}, "spec.tracking[0]", "tensorbord", "did you mean tensorboard?"),
        ({"spec.tracking": ["MLFlow=http://m:1"]}, "spec.tracking[0]", "MLFlow=http://m:1", "did you mean mlflow?"),
        ({"spec.tracking": ["csv=/a\0b"]}, "spec.tracking[0]", "csv=/a\0b", "without control characters"),
        ({"spec.tracking": ["csv="]}, "spec.tracking[0]", "csv=", "and where: csv=/logs"),
        ({"spec.runtime.preload": ["a b"]}, "spec.runtime.preload[0]", "a b", "name of a module, such as torch.nn"),
        ({"spec.checkpoint.staging.medium": "ram"}, "spec.checkpoint.staging.medium", "ram", 'one of "", Memory'),
        (
            {"spec.checkpoint.storage": "/" + "x" * 1024},
            "spec.checkpoint.storage",
            "/" + "x" * 1024,
            "at most 1024 characters",
        ),
        ({"status.timing.activeSince": "today"}, "status.timing.activeSince", "today", "2026-01-31T12:00:00Z"),
    ],
)
def test_wrong_types_and_ranges(changes: dict[str, Any], field: str, value: Any, says: str) -> None:
    problem = only(changes)
    assert (problem.field, problem.value) == (field, value)
    assert says in problem.message


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"spec.worker": 2}, "spec.worker", "did you mean workers?"),
        ({"spec.failure_policy": {}}, "spec.failure_policy", "did you mean failurePolicy?"),
        ({"spec.checkpoint.scoreAtribute": "a"}, "spec.checkpoint.scoreAtribute", "did you mean scoreAttribute?"),
        ({"spec.maxFailures": 3}, "spec.maxFailures", "it belongs at spec.failurePolicy.maxFailures"),
        (
            {"spec.checkpoint.sizeLimit": "1Gi"},
            "spec.checkpoint.sizeLimit",
            "it belongs at spec.checkpoint.staging.sizeLimit",
        ),
        ({"workers": 2}, "workers", "it belongs at spec.workers"),
        ({"spec.replicas": 2}, "spec.replicas", "here it is spec.workers"),
        ({"spec.backoffLimit": 2}, "spec.backoffLimit", "here it is spec.failurePolicy.maxFailures"),
        ({"spec.image": "x"}, "spec.image", "here it is spec.template.spec.containers[0].image"),
        ({"spec.hangTimeout": 5}, "spec.hangTimeout", "here it is spec.hang.afterSeconds"),
        ({"spec.keepLast": 3}, "spec.keepLast", "here it is spec.checkpoint.keep"),
        ({"spec.num_to_keep": 3}, "spec.num_to_keep", "here it is spec.checkpoint.keep"),
        ({"spec.resume_from_checkpoint": "x"}, "spec.resume_from_checkpoint", "here it is spec.checkpoint.resumeFrom"),
        ({"spec.nodeSelector": {}}, "spec.nodeSelector", "here it is spec.template.spec.nodeSelector"),
        ({"spec.useGpu": True}, "spec.useGpu", "here it is spec.template.spec.containers[0].resources.limits"),
        ({"spec.rdzv_backend": "c10d"}, "spec.rdzv_backend", "here it is spec.rendezvous.backend"),
        ({"spec.maxRestart": 3}, "spec.maxRestart", "did you mean spec.failurePolicy.maxFailures?"),
        ({"spec.scoreAttribut": "x"}, "spec.scoreAttribut", "did you mean spec.checkpoint.scoreAttribute?"),
        (
            {"spec.elastic": {"minWorkers": 1, "maxWorkers": 2, "min": 1}},
            "spec.elastic.min",
            "here it is spec.elastic.minWorkers",
        ),
        ({"spec.quux": 2}, "spec.quux", "this version knows here: workers, elastic, processesPerWorker"),
        (
            {"spec.failurePolicy.rules": [{"exitCodes": [1], "action": "Fail", "code": 1}]},
            "spec.failurePolicy.rules[0].code",
            "exitCodes, action",
        ),
    ],
)
def test_unknown_fields_get_a_suggestion(changes: dict[str, Any], field: str, says: str) -> None:
    problem = only(changes)
    assert problem.field == field and problem.message.startswith("unknown field") and says in problem.message


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"apiVersion": "trainjob.dev/v1"}, "apiVersion", "must be trainjob.dev/v1alpha1; this version reads no other"),
        ({"apiVersion": REMOVED}, "apiVersion", "must be trainjob.dev/v1alpha1"),
        ({"kind": "Job"}, "kind", "must be TrainJob"),
        (
            {"apiVersion": "trainer.kubeflow.org/v1alpha1", "spec": {"runtimeRef": {}}},
            "apiVersion",
            "Kubeflow's job of the same name",
        ),
        ({"kind": None}, "kind", "must be TrainJob"),
        ({"apiVersion": ["x"]}, "apiVersion", "must be"),
    ],
)
def test_another_kind_is_said_and_nothing_else(changes: dict[str, Any], field: str, says: str) -> None:
    problem = only({**changes, "spec.nonsense": 1})
    assert problem.field == field and says in problem.message


def test_both_version_and_kind() -> None:
    assert [p.field for p in problems_of({"apiVersion": "v1", "kind": "Pod"})] == ["apiVersion", "kind"]


@pytest.mark.parametrize("doc", [None, [], "x", 3, True, float("nan"), {1: 2}, b"x"])
def test_what_is_no_map(doc: Any) -> None:
    assert len(problems_of(doc)) >= 1


def test_an_empty_field_is_an_absent_one_as_for_the_api_server() -> None:
    text = "spec:\n  checkpoint:\n  failurePolicy:\n    rules:\n  suspend:\n"
    changes = {f"spec.{key}": value for key, value in yaml.safe_load(text)["spec"].items()}
    assert parse_trainjob(document(changes)) == parse_trainjob(document())


# --- Across fields ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [case for case in RULE_CASES if case.old is None], ids=lambda case: case.name)
def test_what_the_crds_rules_refuse_is_refused_here_too(case: RuleCase) -> None:
    found = [problem.field for problem in problems_of(document(case.changes))]
    assert found == ([case.refused_at] if case.refused_at else [])


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"metadata.name": "Digits"}, "metadata.name", "lower-case"),
        ({"metadata.name": "a" * 60}, "metadata.name", "has 60 characters; at most 52"),
        ({"metadata.namespace": "../x"}, "metadata.namespace", "lower-case"),
        ({"spec.template": {}}, "spec.template.spec", "containers"),
        ({"spec.template.spec": []}, "spec.template.spec", "containers"),
        ({"spec.template.spec.containers": []}, "spec.template.spec.containers", "at least one container"),
        ({"spec.template.spec.containers": REMOVED}, "spec.template.spec.containers", "at least one container"),
        ({"spec.template.spec.containers": {"name": "x"}}, "spec.template.spec.containers", "must be a list"),
        ({"spec.template.containers": []}, "spec.template.containers", "belong into spec.template.spec"),
        ({"spec.template.spec.initContainers": ["x"]}, "spec.template.spec.initContainers[0]", "must be a map"),
        (
            {"spec.template.spec.initContainers": [{"name": "trainer"}]},
            f"{AT}.name",
            "is the name of spec.template.spec.initContainers[0] already",
        ),
        ({f"{TRAINER}.name": REMOVED}, f"{AT}.name", "is required"),
        ({f"{TRAINER}.name": "My Trainer"}, f"{AT}.name", "lower-case"),
        ({f"{TRAINER}.command": REMOVED}, f"{AT}.command", "set spec.runtime.agent: Disabled"),
        ({f"{TRAINER}.command": ["python", 3]}, f"{AT}.command[1]", "put it in quotes"),
        ({f"{TRAINER}.command": "python train.py"}, f"{AT}.command", "for example [python, train.py]"),
        ({f"{TRAINER}.args": ["--lr", 0.1]}, f"{AT}.args[1]", "put it in quotes"),
        (
            {f"{TRAINER}.env": [{"name": "RANK", "value": "0"}]},
            f"{AT}.env[0].name",
            "TrainJob sets this variable itself",
        ),
        (
            {f"{TRAINER}.env": [{"name": "OK", "value": "0"}, {"name": "MASTER_ADDR"}]},
            f"{AT}.env[1].name",
            "TrainJob sets",
        ),
        ({f"{TRAINER}.env": [{"name": "TRAINJOB_JOB", "value": "0"}]}, f"{AT}.env[0].name", "TrainJob sets"),
        ({f"{TRAINER}.env": [{"name": "A", "value": 1}]}, f"{AT}.env[0].value", "put it in quotes"),
        ({f"{TRAINER}.env": {"A": "1"}}, f"{AT}.env", "must be a list"),
        ({f"{TRAINER}.env": ["A=1"]}, f"{AT}.env[0]", "must be a map"),
        (
            {f"{TRAINER}.resources": {"limits": {"nvidia.com/gpu": 0.5}}},
            f"{AT}.resources.limits[nvidia.com/gpu]",
            "whole number",
        ),
        ({"spec.template.spec.hostname": "x"}, "spec.template.spec.hostname", "must be left out"),
        (
            {"spec.template.metadata": {"labels": {"trainjob.dev/job": "x"}}},
            "spec.template.metadata.labels[trainjob.dev/job]",
            "the operator's own",
        ),
        (
            {"spec.template.metadata": {"annotations": {"a": True}}},
            "spec.template.metadata.annotations[a]",
            "put it in quotes",
        ),
        ({"spec.template.metadata": []}, "spec.template.metadata", "must be a map"),
        (
            {"spec.processesPerWorker": 2, "spec.runtime.agent": "Disabled"},
            "spec.processesPerWorker",
            "without the agent a pod has one process",
        ),
        (
            {"spec.processesPerWorker": 2, f"{TRAINER}.command": ["/opt/bin/torchrun", "t.py"]},
            "spec.processesPerWorker",
            "`torchrun` starts the processes of a pod itself; say how many in the command, --nproc-per-node=2",
        ),
        (
            {"spec.processesPerWorker": 2, f"{TRAINER}.command": ["sh", "-c", "mpirun t"]},
            "spec.processesPerWorker",
            "sh runs once in each pod",
        ),
        (
            {"spec.checkpoint.storage": "gs://bucket"},
            "spec.checkpoint.storage",
            "on mounted paths and at s3://, not at gs://",
        ),
        ({"spec.checkpoint.storage": "s3://b/x"}, "spec.checkpoint.storage", "'b' is no bucket's name"),
        ({"spec.checkpoint.storage": "s3://Bucket/x"}, "spec.checkpoint.storage", "'Bucket' is no bucket's name"),
        ({"spec.checkpoint.storage": "s3:///x"}, "spec.checkpoint.storage", "'' is no bucket's name"),
        ({"spec.checkpoint.storage": "s3://bucket/a//b"}, "spec.checkpoint.storage", "without empty parts"),
        ({"spec.checkpoint.storage": "s3://bucket/../b"}, "spec.checkpoint.storage", "without empty parts"),
        ({"spec.checkpoint.resumeFrom": "s3://b"}, "spec.checkpoint.resumeFrom", "'b' is no bucket's name"),
        (
            {"spec.checkpoint.s3": {"region": "eu-west-1"}},
            "spec.checkpoint.s3",
            "left out unless storage or resumeFrom is at s3://",
        ),
        (
            {**IN_S3, "spec.checkpoint.s3": {"endpointURL": "minio:9000"}},
            "spec.checkpoint.s3.endpointURL",
            "must be http:// or https://",
        ),
        (
            {**IN_S3, "spec.checkpoint.s3": {"endpointURL": "http://minio:9000/bucket"}},
            "spec.checkpoint.s3.endpointURL",
            "nothing behind them",
        ),
        ({**IN_S3, "spec.checkpoint.s3": {"region": "Europe"}}, "spec.checkpoint.s3.region", "eu-central-1"),
        (
            {**IN_S3, "spec.checkpoint.s3": {"credentialsSecret": "My_Secret"}},
            "spec.checkpoint.s3.credentialsSecret",
            "name of a Secret",
        ),
        (
            {**IN_S3, "spec.checkpoint.s3": {"caConfigMap": "My_CA"}},
            "spec.checkpoint.s3.caConfigMap",
            "name of a ConfigMap",
        ),
        (
            {"spec.tracking": ["csv", "csv"], "spec.checkpoint.storage": "/c"},
            "spec.tracking",
            "must name each tracker once",
        ),
        ({"spec.tracking": ["csv"]}, "spec.tracking", "needs spec.checkpoint.storage"),
        (
            {"spec.tracking": ["mlflow", "csv=s3://b/logs"], "spec.checkpoint.storage": "/c"},
            "spec.tracking",
            "csv=s3://b/logs must name a folder on a volume by its absolute path, such as csv=/logs/job",
        ),
        ({**IN_S3, "spec.tracking": ["tensorboard"]}, "spec.tracking", "such as tensorboard=/logs/job"),
        (
            {"spec.tracking": ["wandb", "csv=logs"], "spec.checkpoint.storage": "/c"},
            "spec.tracking",
            "csv=logs must name a folder on a volume by its absolute path, such as csv=/logs/job",
        ),
        ({"spec.checkpoint.storage": "./x"}, "spec.checkpoint.storage", "absolute path"),
        ({"spec.checkpoint.storage": ""}, "spec.checkpoint.storage", "absolute path"),
        ({"spec.checkpoint.storage": "/"}, "spec.checkpoint.storage", "a folder below /"),
        ({"spec.checkpoint.storage": "/a/../b"}, "spec.checkpoint.storage", "without `..`"),
        ({"spec.checkpoint.storage": "/a\nb"}, "spec.checkpoint.storage", "control characters"),
        ({"spec.checkpoint.resumeFrom": "None"}, "spec.checkpoint.resumeFrom", "did you mean none?"),
        ({"spec.checkpoint.resumeFrom": "1-2-3"}, "spec.checkpoint.resumeFrom", "auto, none, or the absolute path"),
        ({"spec.checkpoint.resumeFrom": "gs://b/x"}, "spec.checkpoint.resumeFrom", "not at gs://"),
        ({"spec.checkpoint.scoreAttribute": "val."}, "spec.checkpoint.scoreAttribute", "name of a reported metric"),
        ({"spec.checkpoint.staging.sizeLimit": "20GB"}, "spec.checkpoint.staging.sizeLimit", "did you mean 20G?"),
        ({"spec.checkpoint.staging.sizeLimit": "20 Gi"}, "spec.checkpoint.staging.sizeLimit", "did you mean 20Gi?"),
        ({"spec.checkpoint.staging.sizeLimit": "20m"}, "spec.checkpoint.staging.sizeLimit", "did you mean 20M?"),
        ({"spec.checkpoint.staging.sizeLimit": "lots"}, "spec.checkpoint.staging.sizeLimit", "such as 20Gi or 500M"),
    ],
)
def test_across_fields(changes: dict[str, Any], field: str, says: str) -> None:
    problem = only(changes)
    assert problem.field == field
    assert says in problem.message, problem.message


@pytest.mark.parametrize(
    "changes",
    [
        {
            f"{TRAINER}.env": [
                {"name": "TRAINJOB_BARRIER_TIMEOUT_SECONDS", "value": "60"},
                {"name": "PET_NPROC_PER_NODE", "value": "8"},
            ]
        },
        {"spec.checkpoint": {"keep": 3, "scoreAttribute": "val.acc"}},
        {"spec.checkpoint.storage": "/mnt/with space/ünï"},
        {"spec.checkpoint.storage": "s3://bucket"},
        {"spec.checkpoint.storage": "s3://my.bucket-1/with space/ünï/"},
        {
            "spec.checkpoint": {
                "resumeFrom": "s3://bucket/x/checkpoints/1-1-1",
                "s3": {"endpointURL": "http://minio.storage:9000", "credentialsSecret": "s3.keys"},
            }
        },
        {f"{TRAINER}.env": [{"name": "TRAINJOB_S3_CHECKSUM", "value": "crc32"}]},
        {
            "spec.template.spec.containers": [{"name": "trainer", "command": ["python"], "args": ["train.py"]}],
            "spec.processesPerWorker": 2,
        },
        {"spec.template.spec.initContainers": [{"name": "fetch"}]},
        {"status": {"timing": {"activeSince": "2030-01-01T00:00:00Z"}, "progress": {"metrics": {"loss": 1}}}},
        {"metadata.annotations": {"a": "b"}, "metadata.managedFields": [{"x": None}]},
    ],
)
def test_accepted(changes: dict[str, Any]) -> None:
    assert [str(problem) for problem in problems_of(document(changes))] == []


def test_a_code_in_two_rules_says_which_wins() -> None:
    rules = [{"exitCodes": [42, 43], "action": "Fail"}, {"exitCodes": [44, 42], "action": "Ignore"}]
    problem = only({"spec.failurePolicy.rules": rules})
    assert (problem.field, problem.value) == ("spec.failurePolicy.rules[1].exitCodes[1]", 42)
    assert "stands in rules[0] (Fail) already, which wins" in problem.message


def test_several_problems_are_reported_together() -> None:
    changes = {
        "spec.workers": "2",
        "spec.worker": 1,
        "spec.checkpoint": {"storage": "gs://b"},
        f"{TRAINER}.command": REMOVED,
        "metadata.name": "A",
    }
    found = {problem.field for problem in problems_of(document(changes))}
    assert found == {"spec.workers", "spec.worker", "spec.checkpoint.storage", f"{AT}.command", "metadata.name"}


def test_a_field_of_the_wrong_type_draws_no_second_complaint() -> None:
    assert only({"spec.runtime.agent": "off", f"{TRAINER}.command": REMOVED}).field == "spec.runtime.agent"
    assert only({"spec.processesPerWorker": "x", "spec.runtime.agent": "Disabled"}).field == "spec.processesPerWorker"


def test_validate_spec_takes_what_is_stored() -> None:
    spec = TrainJobSpec.model_validate({"template": {}, "checkpoint": {"storage": "gs://x"}})
    assert [problem.field for problem in validate_spec(spec, "a.b")] == [
        "metadata.name",
        "spec.template.spec",
        "spec.checkpoint.storage",
    ]


# --- Any input -------------------------------------------------------------------------------------------------------

POD_KEYS = [
    "spec",
    "metadata",
    "containers",
    "initContainers",
    "name",
    "command",
    "args",
    "env",
    "value",
    "labels",
    "restartPolicy",
    "resources",
    "limits",
    "nvidia.com/gpu",
]
KEYS = sorted({place.rsplit(".", 1)[-1] for place in shape.places()} | set(POD_KEYS))


def parses_or_says_why(doc: Any) -> None:
    try:
        job = parse_trainjob(doc)
    except InvalidTrainJob as error:
        assert error.problems and all(problem.message for problem in error.problems)
        assert "\n" in str(error)
    else:
        assert isinstance(job, TrainJob)
        assert validate_spec(job.spec, job.metadata.name) == []


@given(json_values(["apiVersion", "kind", "metadata", "spec", "status", *KEYS]))
@example({"apiVersion": "trainjob.dev/v1alpha1", "kind": "TrainJob"})
def test_any_document(doc: Any) -> None:
    parses_or_says_why(doc)


@given(
    st.dictionaries(st.sampled_from(KEYS), json_values(KEYS)),
    json_values(["name", "namespace", "uid"]),
    json_values(["attempt", "timing"]),
)
def test_any_spec(spec: Any, metadata: Any, status: Any) -> None:
    parses_or_says_why({**document(), "spec": {**document()["spec"], **spec}})
    parses_or_says_why({**document(), "metadata": metadata, "status": status})


@given(json_values(POD_KEYS, leaves=20))
def test_any_template(template: Any) -> None:
    parses_or_says_why(document({"spec.template": template}))
    parses_or_says_why(document({"spec.template.spec": template}))
    parses_or_says_why(document({TRAINER: template}))


@given(st.sampled_from(shape.places()), json_values(KEYS))
def test_any_value_at_any_field(place: str, value: Any) -> None:
    if ".rules." not in place:
        parses_or_says_why(document({place: value}))


@given(st.text(max_size=30))
def test_any_text_as_storage_resume_name_and_size(text: str) -> None:
    parses_or_says_why(document({"metadata.name": text}))
    for place in ("storage", "resumeFrom", "staging.sizeLimit", "scoreAttribute"):
        parses_or_says_why(document({f"spec.checkpoint.{place}": text}))


@pytest.mark.parametrize("place", sorted(set(shape.SYNONYMS.values())))
def test_what_other_tools_call_otherwise_is_there_under_our_name(place: str) -> None:
    """A field of ours that is renamed takes its synonyms along."""
    pod = "spec.template.spec"
    assert place in shape.places() or place == "metadata.name" or place.startswith(f"{pod}.")


def test_no_synonym_hides_a_field_of_ours() -> None:
    own = {place.rsplit(".", 1)[-1] for place in shape.places()}
    assert not own & set(shape.SYNONYMS)

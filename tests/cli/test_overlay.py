"""Options of the command line over a document."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from trainjob.cli.argument_types import workers
from trainjob.cli.errors import CommandError
from trainjob.cli.overlay import Options, overlay, parse
from trainjob_api import contract
from trainjob_api.validation import parse_trainjob


def document() -> dict[str, Any]:
    containers = [
        {"name": "sidecar"},
        {"name": "trainer", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
    ]
    return {
        "metadata": {"name": "digits"},
        "spec": {
            "workers": 4,
            "checkpoint": {"storage": "/ckpt", "keep": 2},
            "template": {"spec": {"containers": containers}},
        },
    }


def test_no_option_changes_nothing() -> None:
    assert overlay(document(), Options()) == document()


def test_every_option_reaches_its_field_and_the_rest_stays() -> None:
    given = Options(
        name="n",
        workers=2,
        processes_per_worker=3,
        storage="/here",
        fresh=True,
        max_failures=0,
        strict=False,
        on_upload_failure="Fail",
    )
    result = overlay(document(), given)
    assert result["metadata"]["name"] == "n"
    assert result["spec"]["workers"] == 2
    assert result["spec"]["processesPerWorker"] == 3
    assert result["spec"]["checkpoint"] == {
        "storage": "/here",
        "keep": 2,
        "strict": False,
        "onUploadFailure": "Fail",
        "resumeFrom": "none",
    }
    assert result["spec"]["failurePolicy"] == {"maxFailures": 0}


def test_how_a_bucket_is_reached_is_put_beside_what_the_document_says_of_it() -> None:
    original = document()
    original["spec"]["checkpoint"]["s3"] = {"endpointURL": "https://old:9000", "region": "eu-west-3"}
    result = overlay(original, Options(s3_endpoint="https://new:9000", s3_secret="keys", s3_ca_config_map="store-ca"))
    s3 = {
        "endpointURL": "https://new:9000",
        "region": "eu-west-3",
        "credentialsSecret": "keys",
        "caConfigMap": "store-ca",
    }
    assert result["spec"]["checkpoint"]["s3"] == s3


def test_the_given_document_is_not_touched() -> None:
    original = document()
    overlay(original, Options(name="n", env=[("A", "9")]))
    assert original == document()


def test_environment_goes_to_the_trainer_and_replaces_its_own() -> None:
    containers = overlay(document(), Options(env=[("A", "9"), ("C", "x=y")]))["spec"]["template"]["spec"]["containers"]
    assert containers[0] == {"name": "sidecar"}
    assert containers[1]["env"] == [
        {"name": "B", "value": "2"},
        {"name": "A", "value": "9"},
        {"name": "C", "value": "x=y"},
    ]


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"spec": None},
        {"spec": {"checkpoint": "s3", "template": {"spec": {"containers": []}}}},
        {"spec": {"template": {"spec": {"containers": ["x"]}}}},
    ],
)
def test_what_makes_no_sense_is_left_to_validation(broken: dict[str, Any]) -> None:
    overlay(broken, Options(storage="/x", keep=1, env=[("A", "1")]))


def runnable(**checkpoint: Any) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "trainer", "image": "x", "command": ["python", "train.py"]}]}}
    spec = {"checkpoint": {"storage": "s3://bucket/x", **checkpoint}, "template": template}
    return {"apiVersion": contract.API_VERSION, "kind": contract.KIND, "metadata": {"name": "digits"}, "spec": spec}


def refused(document: dict[str, Any], options: Options, file: str | None = None) -> CommandError:
    with pytest.raises(CommandError) as raised:
        parse(overlay(document, options), options, command="submit", file=file)
    return raised.value


def test_a_value_that_makes_no_sense_is_refused_in_validations_words_under_its_options_name() -> None:
    upload = refused(runnable(), Options(on_upload_failure="fail"))
    assert (
        "  --on-upload-failure (spec.checkpoint.onUploadFailure): must be one of Continue, Fail; did you mean Fail?"
        in str(upload)
    )
    store = str(
        refused(
            runnable(),
            Options(
                s3_endpoint="minio:9000", s3_region="Frankfurt 1", s3_secret="My Keys", s3_ca_config_map="./ca.crt"
            ),
        )
    )
    for options, said in [
        (
            Options(track=["wandb", "comet"]),
            "--track (spec.tracking[1]): must be one of csv, tensorboard, mlflow, wandb",
        ),
        (Options(track=["csv=s3://b"]), "--track (spec.tracking): csv=s3://b must name a folder on a volume"),
        (
            Options(track=["csv=logs"]),
            "--track (spec.tracking): csv=logs must name a folder on a volume by its absolute",
        ),
        (Options(preload=["a b"]), "--preload (spec.runtime.preload[0]): must be the name of a module"),
    ]:
        assert said in str(refused(runnable(), options))
    for flag, said in [
        ("--s3-endpoint", "must be http:// or https:// with host and port"),
        ("--s3-region", "must be the name of a region"),
        ("--s3-secret", "must be the name of a Secret in the job's namespace"),
        ("--s3-ca-config-map", "must be the name of a ConfigMap in the job's namespace"),
    ]:
        assert next(line for line in store.splitlines() if flag in line).partition("): ")[2].startswith(said)


def test_how_a_bucket_is_reached_without_a_bucket_is_refused_under_the_names_of_all_that_say_it() -> None:
    said = str(refused(runnable(storage="/ckpt"), Options(s3_endpoint="https://minio:9000", s3_secret="keys")))
    assert "--s3-endpoint, --s3-secret (spec.checkpoint.s3): must be left out unless" in said
    partly = str(refused(runnable(storage="/ckpt", s3={"region": "eu-west-3"}), Options(s3_secret="keys")))
    assert "  spec.checkpoint.s3: must be left out unless" in partly  # the manifest says a part of it


@pytest.mark.parametrize(
    ("broken", "options", "code", "next_step"),
    [
        ({"keep": 0}, Options(), contract.CLI_ERROR, "tj validate -f job.yaml"),
        ({}, Options(on_upload_failure="no"), contract.CLI_USAGE, "tj submit --help"),
        ({"keep": 0}, Options(on_upload_failure="no"), contract.CLI_ERROR, "tj validate -f job.yaml"),
    ],
    ids=["the manifest's", "an option's", "of both"],
)
def test_the_next_step_is_where_the_fault_is(
    broken: dict[str, Any], options: Options, code: int, next_step: str
) -> None:
    error = refused(runnable(**broken), options, file="job.yaml")
    assert (error.code, next_step in error.next_step) == (code, True)
    assert "--keep" not in str(error)  # the document's own, not an option's


def test_options_that_make_sense_give_the_job_of_the_document() -> None:
    options = Options(strict=True, on_upload_failure="Fail", s3_ca_config_map="store-ca")
    document = overlay(runnable(), options)
    assert parse(document, options, command="run", file=None) == parse_trainjob(document)


@pytest.mark.parametrize(
    "empty", [{"env": None, "resources": None}, {"env": [], "resources": {"limits": None}}], ids=str
)
def test_what_a_container_leaves_empty_costs_no_option(empty: dict[str, Any]) -> None:
    job = document()
    containers = job["spec"]["template"]["spec"]["containers"]
    containers[1].update(empty)
    found = overlay(job, Options(env=[("A", "9")], gpus=2))["spec"]["template"]["spec"]["containers"][1]
    assert found["env"] == [{"name": "A", "value": "9"}]
    assert found["resources"] == {"limits": {"nvidia.com/gpu": "2"}}
    assert containers[1] == {"name": "trainer", **empty}, "the document itself stays"


def test_a_range_of_workers_is_an_elastic_job() -> None:
    spec = overlay(document(), Options(workers=workers("2-8")))["spec"]
    assert (spec["workers"], spec["elastic"]) == (8, {"minWorkers": 2, "maxWorkers": 8})
    assert type(spec["workers"]) is int, "what YAML and JSON can write"
    assert str(workers("2-8")) == "2-8" and "elastic" not in overlay(document(), Options(workers=workers("4")))["spec"]


@pytest.mark.parametrize("text", ["0-4", "2-", "-3", "a-b", "0", "2..8", "2:8", "0-2", "", "two"])
def test_what_is_no_number_of_workers_is_refused_with_the_way_out(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        workers(text)
    assert str(refused.value) == f"{text!r} is no number of workers: give 4, or 2-8 for 2 to 8; at least 1"


def test_a_range_begins_with_the_smaller_number() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="'8-2': the smaller number comes first, as in 2-8"):
        workers("8-2")


def elastic_job(**sizes: Any) -> dict[str, Any]:
    made = runnable()
    made["spec"] |= {"workers": 3, "elastic": {"minWorkers": 1, "maxWorkers": 3, **sizes}}
    return made


@pytest.mark.parametrize(
    ("text", "allowed", "size", "left"),
    [("1-6", [1, 2, 4, 8], 4, [1, 2, 4]), ("2-8", [1, 2, 4, 8], 8, [2, 4, 8]), ("1-2", [1, 3], 1, [1])],
)
def test_a_range_takes_of_a_manifests_sizes_those_within_it(
    text: str, allowed: list[int], size: int, left: list[int]
) -> None:
    original = elastic_job(maxWorkers=8, allowedSizes=allowed)
    options = Options(workers=workers(text))
    spec = parse(overlay(original, options), options, command="run", file="job.yaml").spec
    assert spec.elastic is not None and (spec.workers, list(spec.elastic.allowed_sizes)) == (size, left)
    assert original["spec"]["elastic"]["allowedSizes"] == allowed


def test_a_range_without_any_of_a_manifests_sizes_is_refused_by_both_names() -> None:
    error = refused(elastic_job(allowedSizes=[1, 3]), Options(workers=workers("5-8")), file="job.yaml")
    assert "--workers (spec.elastic.allowedSizes[0]): must be from minWorkers to maxWorkers, 5 to 8" in str(error)


def test_a_number_beyond_a_manifests_bounds_says_how_to_move_them() -> None:
    said = str(refused(elastic_job(), Options(workers=workers("5")), file="job.yaml"))
    assert "--workers (spec.workers): must be from spec.elastic.minWorkers to maxWorkers, 1 to 3" in said
    assert "--workers 1-5 moves the bounds" in said
    below = str(refused(elastic_job(minWorkers=2), Options(workers=workers("1")), file="job.yaml"))
    assert "--workers 1-3 moves the bounds" in below

"""Is this a TrainJob that can run? Everything that is wrong with it is told at once, in words.

Called by the CLI and the launcher (`parse_trainjob`, on what a person wrote) and by the operator (`validate_spec`, on
what is stored: the reasons of an InvalidSpec condition). Pure; looks at nothing but the object. The rules that one
object can answer stand in the CRD as well (`cel.py`), so that `kubectl apply` refuses them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from trainjob_api import contract, defaults, quantity, shape
from trainjob_api.command import launcher_of
from trainjob_api.elastic_rules import elastic_problems
from trainjob_api.plain_json import plain
from trainjob_api.pod_schema import pod_problems
from trainjob_api.problems import ABSENT, InvalidTrainJob, Problem
from trainjob_api.storage_rules import is_s3, storage_problems
from trainjob_api.template_rules import DNS_LABEL, template_problems
from trainjob_api.v1alpha1 import CheckpointSpec, FailurePolicy, TrainJob, TrainJobSpec

__all__ = ["InvalidTrainJob", "Problem", "parse_trainjob", "validate_spec"]

_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def parse_trainjob(document: Any) -> TrainJob:
    """The TrainJob that a document (as YAML or JSON gives it) stands for. Raises InvalidTrainJob with every problem
    found.
    """
    copy, problems = plain(document)
    problems += [] if problems else _kind_problems(copy)
    if problems:
        raise InvalidTrainJob(problems, _name_in(copy))
    copy = _without_nulls(copy)
    parsed = shape.parse(copy)
    problems = parsed + _salvaged_problems(copy, parsed) if isinstance(parsed, list) else _object_problems(parsed)
    if isinstance(parsed, list) or problems:
        raise InvalidTrainJob(problems, _name_in(copy))
    return parsed


def validate_spec(spec: TrainJobSpec, name: str) -> list[Problem]:
    """What is wrong with a spec whose fields each have the right type: checks across fields, and of the template.
    Never raises.
    """
    return [
        *_name_problems(name),
        *template_problems(spec),
        *_process_problems(spec),
        *elastic_problems(spec),
        *_hang_problems(spec),
        *_spare_problems(spec),
        *_tracking_problems(spec),
        *_checkpoint_problems(spec.checkpoint),
        *_rule_problems(spec.failure_policy),
    ]


# --- The document ----------------------------------------------------------------------------------------------------


def _kind_problems(document: Any) -> list[Problem]:
    """Whether it is a TrainJob of this version at all; nothing else is looked at when it is not."""
    if not isinstance(document, dict):
        return [Problem("", document, "must be a map with apiVersion, kind, metadata and spec")]
    version, kind = document.get("apiVersion", ABSENT), document.get("kind", ABSENT)
    group = str(version).split("/")[0]
    if kind == contract.KIND and group != contract.GROUP and group.endswith("kubeflow.org"):
        return [
            Problem(
                "apiVersion",
                version,
                "is Kubeflow's job of the same name; a TrainJob of this project has apiVersion: "
                f"{contract.API_VERSION}",
            )
        ]
    problems = []
    if version != contract.API_VERSION:
        also = "; this version reads no other" if group == contract.GROUP else ""
        problems.append(Problem("apiVersion", version, f"must be {contract.API_VERSION}{also}"))
    if kind != contract.KIND:
        problems.append(Problem("kind", kind, f"must be {contract.KIND}"))
    return problems


def _without_nulls(document: dict[str, Any]) -> dict[str, Any]:
    """The document as the API server would store it: an empty field (`checkpoint:` with nothing behind it) is an absent
    one.

    The template is left as it is: there the API server keeps what it does not know.
    """
    kept: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, dict) and key != "template":
            kept[key] = _without_nulls(value)
        elif isinstance(value, list) and key != "template":
            kept[key] = [_without_nulls(item) if isinstance(item, dict) else item for item in value]
        elif value is not None:
            kept[key] = value
    return kept


def _name_in(document: Any) -> str:
    metadata = document.get("metadata") if isinstance(document, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else ""


def _object_problems(job: TrainJob) -> list[Problem]:
    problems = validate_spec(job.spec, job.metadata.name)
    said = {problem.field for problem in problems}
    problems += [problem for problem in pod_problems(job.spec.template) if problem.field not in said]
    namespace = job.metadata.namespace
    if DNS_LABEL.fullmatch(namespace) is None:
        problems.append(
            Problem(
                "metadata.namespace", namespace, "must be lower-case letters, digits and dashes, at most 63 characters"
            )
        )
    return problems


def _salvaged_problems(document: dict[str, Any], found: list[Problem]) -> list[Problem]:
    """What the checks across fields say about the rest of a document, some of whose fields have the wrong type.

    Fields with a problem take their default for this; what is then said about one of them is left out.
    """
    spec = document.get("spec")
    wrong = {_top(problem.field) for problem in found}
    if not isinstance(spec, dict) or wrong & {"spec", "spec.runtime", "metadata"}:
        return []
    rest = {"template": {}} | {key: value for key, value in spec.items() if f"spec.{key}" not in wrong}
    metadata = document["metadata"] if "metadata.name" not in wrong else {"name": "name"}
    parsed = shape.parse({"metadata": metadata, "spec": rest})
    if not isinstance(parsed, TrainJob):
        return []
    return [problem for problem in _object_problems(parsed) if _top(problem.field) not in wrong]


def _top(field: str) -> str:
    """`spec.checkpoint.keep` -> `spec.checkpoint`."""
    return ".".join(re.split(r"[.\[]", field)[:2])


# --- Checks across fields --------------------------------------------------------------------------------------------


def _name_problems(name: str) -> Iterator[Problem]:
    if len(name) > contract.NAME_LIMIT:
        yield Problem(
            "metadata.name",
            name,
            f"has {len(name)} characters; at most {contract.NAME_LIMIT} fit, because pods carry it with a number "
            "behind it",
        )
    if _NAME.fullmatch(name) is None:
        yield Problem(
            "metadata.name",
            name,
            "must be lower-case letters, digits and dashes, begin with a letter and end with a letter or digit",
        )


def _process_problems(spec: TrainJobSpec) -> Iterator[Problem]:
    processes = spec.processes_per_worker
    if processes == "auto" or processes == 1:
        return
    field = "spec.processesPerWorker"
    command = defaults.command_of(defaults.trainer_container(spec)[1])
    if not defaults.uses_agent(spec):
        yield Problem(
            field,
            processes,
            "must be 1 or left out with spec.runtime.agent: Disabled: without the agent a pod has one process, which "
            "may start more itself",
        )
    elif command and not defaults.starts_ranks(command):
        launcher = launcher_of(command)
        if launcher is None:
            why = (
                f"{command[0].rsplit('/', 1)[-1]} runs once in each pod; only `python script.py` and `python -m "
                "module` are started once per rank"
            )
        elif "torch" in launcher:
            why = (
                f"`{launcher}` starts the processes of a pod itself; say how many in the command, "
                f"--nproc-per-node={processes}"
            )
        else:
            why = f"`{launcher}` starts the processes of a pod itself; say how many in its own options"
        yield Problem(field, processes, f"must be 1 or left out with this command: {why}")


def _hang_problems(spec: TrainJobSpec) -> Iterator[Problem]:
    if spec.hang.action == contract.HANG_RESTART and not defaults.uses_agent(spec):
        yield Problem(
            "spec.hang.action",
            spec.hang.action,
            "must not be Restart with spec.runtime.agent: Disabled: without the agent nobody sees that ranks hang",
        )
    if spec.hang.replace_stragglers and not defaults.uses_agent(spec):
        yield Problem(
            "spec.hang.replaceStragglers",
            True,
            "needs the agent: with spec.runtime.agent: Disabled nobody sees which ranks are slow",
        )
    elif spec.hang.replace_stragglers and spec.hang.action == contract.HANG_OFF:
        yield Problem(
            "spec.hang.replaceStragglers", True, "needs spec.hang.action: Report or Restart: with Off nobody looks"
        )


def _spare_problems(spec: TrainJobSpec) -> Iterator[Problem]:
    if spec.runtime.spare_workers and not defaults.uses_agent(spec):
        yield Problem(
            "spec.runtime.spareWorkers",
            spec.runtime.spare_workers,
            "must be 0 or left out with spec.runtime.agent: Disabled: without the agent a worker cannot take the "
            "place of another, each attempt has new pods",
        )


def _tracking_problems(spec: TrainJobSpec) -> Iterator[Problem]:
    field = "spec.tracking"
    if not spec.tracking:
        return
    if not defaults.uses_agent(spec):
        yield Problem(
            field, spec.tracking, "must be left out with spec.runtime.agent: Disabled: the agent feeds trackers"
        )
    elif not spec.checkpoint.storage:
        yield Problem(
            field,
            spec.tracking,
            "needs spec.checkpoint.storage: what a job reports is read there, and how far each tracker has come is "
            "kept there",
        )
    elif len(set(spec.tracking)) < len(spec.tracking):
        yield Problem(field, spec.tracking, "must name each tracker once")
    elif homeless := [word for word in spec.tracking if re.match(contract.TRACKERS_NO_FOLDER, word)]:
        kind = homeless[0].partition("=")[0]
        yield Problem(
            field,
            spec.tracking,
            f"{homeless[0]} must name a folder on a volume by its absolute path, such as {kind}=/logs/job: a relative "
            "one lies wherever rank 0 runs",
        )
    elif is_s3(spec.checkpoint.storage):
        word = next((word for word in spec.tracking if word in contract.TRACKERS_OF_FILES), None)
        if word is not None:
            yield Problem(
                field,
                spec.tracking,
                f"must name a folder on a volume, such as {word}=/logs/job: checkpoints are in a bucket, where {word} "
                "cannot write",
            )


def _checkpoint_problems(checkpoint: CheckpointSpec) -> Iterator[Problem]:
    field = "spec.checkpoint"
    yield from storage_problems(checkpoint)
    if checkpoint.score_attribute is not None and not all(checkpoint.score_attribute.split(".")):
        yield Problem(
            f"{field}.scoreAttribute",
            checkpoint.score_attribute,
            "must be the name of a reported metric, for example accuracy or val.loss",
        )
    limit = checkpoint.staging.size_limit
    if limit is not None and (not quantity.is_positive_quantity(limit) or limit[-1] in "num"):
        meant = quantity.suggestion(limit)
        yield Problem(
            f"{field}.staging.sizeLimit",
            limit,
            "must be a size such as 20Gi or 500M" + (f"; did you mean {meant}?" if meant else ""),
        )


def _rule_problems(policy: FailurePolicy) -> Iterator[Problem]:
    first: dict[int, str] = {}
    for at, rule in enumerate(policy.rules):
        for position, code in enumerate(rule.exit_codes):
            field = f"spec.failurePolicy.rules[{at}].exitCodes[{position}]"
            if code in first:
                yield Problem(
                    field,
                    code,
                    f"stands in {first[code]} already, which wins because it comes first; remove one of them",
                )
            first.setdefault(code, f"rules[{at}] ({rule.action})")

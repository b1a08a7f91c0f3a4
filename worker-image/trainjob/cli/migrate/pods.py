"""The pods of another kind's job become those of ours. Pure; called by `manifest` and `jobs`."""

from __future__ import annotations

from typing import Any

from trainjob.cli.migrate.told import Document, Told
from trainjob_api.contract import TRAINER_CONTAINER
from trainjob_api.template_rules import RESERVED_ENV

_THEIRS = ("pytorch", "tensorflow")
"""The names that their operators want for the container that trains."""
_INDEX = "JOB_COMPLETION_INDEX"


def template(theirs: Any, told: Told) -> Document:
    """The pod as it is; the container that trains has our name, and no variables of those that agents set."""
    given: Document = dict(theirs or {})
    pod: Document = {key: value for key, value in (given.get("spec") or {}).items() if key != "restartPolicy"}
    containers = [dict(one) for one in pod.get("containers") or []]
    names = [one.get("name") for one in containers]
    if containers and TRAINER_CONTAINER not in names:
        containers[next((names.index(name) for name in _THEIRS if name in names), 0)]["name"] = TRAINER_CONTAINER
    for one in containers:
        words = [str(word) for word in [*(one.get("command") or ()), *(one.get("args") or ())]]
        if one.get("name") == TRAINER_CONTAINER and any(word.endswith("torchrun") for word in words[:1]):
            told.look("torchrun works as it is; `python script.py` alone gives each rank its own process too")
        elif one.get("name") == TRAINER_CONTAINER and not words:
            told.look("command: a worker's command is given here, the image's own is not run")
        if one.get("name") == TRAINER_CONTAINER:
            _give_places(one, words, told)
    pod["containers"] = containers
    metadata = {key: value for key, value in (given.get("metadata") or {}).items() if key in ("labels", "annotations")}
    return {**({"metadata": metadata} if metadata else {}), "spec": pod}


def _give_places(container: Document, words: list[str], told: Told) -> None:
    """Without the variables by which the file tells pods their place: agents do."""
    kept = []
    for variable in container.get("env") or ():
        name = variable.get("name") if isinstance(variable, dict) else None
        if name in RESERVED_ENV:
            told.change(f"the container's variable {name}", "left out; every rank is given its own")
        else:
            kept.append(variable)
    if "env" in container:
        container["env"] = kept
    if any(_INDEX in word or "JOBSET_" in word for word in words):
        told.look(f"the command asks for {_INDEX} or JOBSET_ names: NODE_RANK is the worker's number here")


def trainer(template: Document, name: str) -> Document:
    """A copy of the container that trains: the one of our name or of that name, else the first."""
    containers = [one for one in ((template.get("spec") or {}).get("containers") or []) if isinstance(one, dict)]
    named = (one for wanted in (TRAINER_CONTAINER, name) for one in containers if one.get("name") == wanted)
    return dict(next(named, containers[0] if containers else {}))


def replaced(template: Document, container: Document) -> Document:
    """The template with that container in place of the one of its name."""
    pod = dict(template.get("spec") or {})
    pod["containers"] = [
        container if isinstance(one, dict) and one.get("name") == container.get("name") else one
        for one in pod.get("containers") or []
    ]
    return {**template, "spec": pod}

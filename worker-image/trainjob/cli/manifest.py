"""TrainJob manifests on disk: read the YAML, find the TrainJobs, put command-line options over what they say.

Used by `run`, `submit` and `validate`. Whether a job makes sense is trainjob_api.validation's business; here only what
stands between a file and a document.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from trainjob.cli.errors import CommandError
from trainjob_api.contract import API_VERSION, CLI_USAGE, GROUP, KIND

Document = dict[str, Any]
_ENDINGS = (".yaml", ".yml")
_MIGRATED = (
    *(("kubeflow.org", kind) for kind in ("PyTorchJob", "TFJob", "MPIJob")),
    ("trainer.kubeflow.org", "TrainJob"),
    ("jobset.x-k8s.io", "JobSet"),
)


def script_or_file(script: str | None, file: str | None, *, verb: str, forms: str) -> None:
    """A job comes from a script or from a manifest: from one of them. `forms`: what to type instead. Raises
    CommandError.
    """
    if script is None and file is None:
        raise CommandError(
            f"there is nothing to {verb}", next_step=f"name a script or a manifest: {forms}", code=CLI_USAGE
        )
    if script is not None and file is not None:
        raise CommandError(f"a script ({script}) or a manifest (-f {file}), not both", next_step=forms, code=CLI_USAGE)
    if script is not None and script.endswith(_ENDINGS):
        local = " --local" if verb == "run" else ""
        raise CommandError(
            f"{script} is a manifest, and no script", next_step=f"tj {verb} -f {script}{local}", code=CLI_USAGE
        )
    if file is not None:
        refuse_script(file, verb)


def refuse_script(file: str, verb: str) -> None:
    """For what stands after -f. `verb`: the command that takes a script. Raises CommandError."""
    if file.endswith(".py"):
        image = " --image IMAGE" if verb == "submit" else ""
        raise CommandError(
            f"{file} is a script, and no manifest",
            next_step=f"a script stands without -f: tj {verb} {file}{image}",
            code=CLI_USAGE,
        )


def read(file: str, others: list[str] | None = None) -> list[Document]:
    """The TrainJobs of a manifest, in its order; documents of other kinds are skipped, their kinds go to `others`.
    Raises CommandError.
    """
    found = documents(file)
    jobs = [document for document in found if isinstance(document, dict) and _is_trainjob(document)]
    if others is not None:
        others += [_kind(document) for document in found if document not in jobs]
    if not jobs:
        kinds = ", ".join(sorted({_kind(document) for document in found})) or "nothing"
        next_step = f"a TrainJob begins with `apiVersion: {API_VERSION}` and `kind: {KIND}`"
        if any(is_kubeflows(document) for document in found):
            next_step = f"`tj migrate {file}` makes a TrainJob of it"
        raise CommandError(f"{file} holds no TrainJob (found: {kinds})", next_step=next_step)
    return jobs


def documents(file: str) -> list[Any]:
    """All documents of a YAML file, empty ones left out. Raises CommandError."""
    return parsed(file, _text(file))


def parsed(file: str, text: str) -> list[Any]:
    """The same of a file's text."""
    import yaml

    try:
        return [document for document in yaml.safe_load_all(text) if document is not None]
    except yaml.YAMLError as error:
        raise CommandError(
            f"{file} is not YAML: {_where(error)}",
            next_step=f"correct {file}; indentation and quotes are the usual causes",
        ) from None


def is_kubeflows(document: object) -> bool:
    """Whether `tj migrate` makes a TrainJob of it: a job of Kubeflow's, or a JobSet."""
    if not isinstance(document, dict) or not isinstance(document.get("spec"), dict):
        return False
    group = _version(document).partition("/")[0]
    return (group, document.get("kind")) in _MIGRATED


def read_one(file: str) -> Document:
    """The only TrainJob of a manifest."""
    jobs = read(file)
    if len(jobs) > 1:
        raise CommandError(
            f"{file} holds {len(jobs)} TrainJobs; one is run at a time",
            next_step="put the one to run into a file of its own",
        )
    return jobs[0]


def _text(file: str) -> str:
    if file == "-":
        return sys.stdin.read()
    try:
        return Path(file).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CommandError(f"there is no file {file} in {Path.cwd()}", next_step="check the path after -f") from None
    except UnicodeDecodeError:
        raise CommandError(f"{file} is not UTF-8 text", next_step="check that -f names a YAML manifest") from None
    except OSError as error:
        raise CommandError(
            f"{file} cannot be read: {error.strerror}", next_step=f"`ls -l {file}` shows what it is and who may read it"
        ) from None


def _is_trainjob(document: Document) -> bool:
    """By kind or by group: a misspelt half is an error to report, not an object to skip. Kubeflow has the kind too."""
    version = _version(document)
    return version.startswith(f"{GROUP}/") or (document.get("kind") == KIND and "kubeflow.org/" not in version)


def _version(document: object) -> str:
    return str(document.get("apiVersion", "")) if isinstance(document, dict) else ""


def _kind(document: object) -> str:
    return (
        str(document.get("kind") or "a mapping without kind")
        if isinstance(document, dict)
        else "text"
        if isinstance(document, str)
        else f"a {type(document).__name__}"
    )


def _where(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"{problem} (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else str(problem)

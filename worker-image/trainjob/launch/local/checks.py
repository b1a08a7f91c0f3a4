"""What can be told before anything is started: storage, command, interpreter, GPUs. One sentence each, with the way
out.

Called by `local.py`. The workers find the same faults themselves (on a cluster they are the first who can); here they
cost no start-up and no restarts.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import pkgutil
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.machinery import PathFinder

from trainjob.launch.errors import LaunchError
from trainjob.launch.job import is_s3
from trainjob.launch.local import gpus
from trainjob.launch.local.environment import expand
from trainjob.launch.local.installed import origin
from trainjob.screen.asked import Asker, in_words_of
from trainjob_api import defaults
from trainjob_api.command import parse_python
from trainjob_api.v1alpha1 import TrainJob
from trainjob_api.validation import InvalidTrainJob, validate_spec

_PROBE_S = 20.0
_BUCKET_S = 10.0
_OLDEST = (3, 9)


def check(
    job: TrainJob,
    environment: Mapping[str, str],
    working_dir: str,
    asker: Asker = Asker.MANIFEST,
    *,
    starts: bool = True,
) -> None:
    """Raises InvalidTrainJob for the object, LaunchError for what this machine lacks, in the words of `asker`. The
    job's folder stays if the job starts, else no folder does that was not there before.
    """
    storage = defaults.job_storage(job)
    made = [] if storage is None or is_s3(storage) else _absent(storage)
    stays = False
    try:
        _check(job, environment, working_dir, asker)
        stays = starts
    finally:
        for folder in () if stays else made:
            with contextlib.suppress(OSError):  # it was not made, or holds somebody else's by now
                os.rmdir(folder)


def _absent(folder: str) -> list[str]:
    """It, and those above it, as far as they are not there."""
    found: list[str] = []
    while folder and not os.path.lexists(folder):
        found.append(folder)
        folder = os.path.dirname(folder)
    return found


def _check(job: TrainJob, environment: Mapping[str, str], working_dir: str, asker: Asker) -> None:
    problems = validate_spec(job.spec, job.metadata.name)
    if problems:
        raise InvalidTrainJob(problems)
    _, container = defaults.trainer_container(job.spec)
    ranks = job.spec.workers * defaults.processes_per_worker(job.spec)
    gpus.check(job.spec.workers * defaults.gpu_limit(container), gpus.visible(environment), ranks, asker)
    check_start(job.spec.checkpoint.resume_from, asker)
    folder = defaults.job_storage(job)
    if folder is not None:
        if not is_s3(folder):
            check_storage(folder)
        elif job.spec.checkpoint.s3 is None:  # else only the agents are told where it is; they try it first thing
            _check_bucket(folder)
    command = [expand(word, environment) for word in defaults.command_of(container)]
    check_command(command, environment, container.get("workingDir") or working_dir)


def fitted(job: TrainJob, environment: Mapping[str, str]) -> TrainJob:
    """The job with as many workers as this machine has GPUs for, if it is elastic; with its least if there are too few
    for that.
    """
    _, container = defaults.trainer_container(job.spec)
    each = defaults.gpu_limit(container)
    if job.spec.elastic is None or not each:
        return job
    size = defaults.largest_size(job.spec, len(gpus.visible(environment)) // each) or defaults.sizes(job.spec)[0]
    return job.model_copy(update={"spec": job.spec.model_copy(update={"workers": size})})


def check_start(resume_from: str, asker: Asker) -> None:
    """The checkpoint of this machine that a run is told to start from is one: what its agents would look at first."""
    from trainjob.checkpoint.errors import StoreError
    from trainjob.checkpoint.reading import runs

    if resume_from in (runs.AUTO, runs.NONE) or is_s3(resume_from):  # a bucket is the agents' to ask
        return
    try:
        runs.named(resume_from)
    except StoreError as error:
        raise LaunchError(in_words_of(asker, str(error))) from error


def check_storage(folder: str) -> None:
    """Make the job's folder and write into it."""
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0" * 4096)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise LaunchError(_storage_text(folder, error)) from error


def _check_bucket(folder: str) -> None:
    """What the agents will try."""
    from trainjob.checkpoint.errors import StoreError
    from trainjob.checkpoint.stores.opening import open_store

    try:
        open_store(folder, retry_s=_BUCKET_S).probe()
    except StoreError as error:
        raise LaunchError(f"the storage cannot be used: {error}") from error


def _storage_text(folder: str, error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return f"the storage {folder} is full ({error.strerror}): free some space, or give another storage path"
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return (
            f"the storage {folder} cannot be written ({error.strerror}): change its permissions, or give another "
            "storage path"
        )
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return (
            f"the storage {folder} runs through something that is no folder ({error.strerror}: {error.filename}): "
            "give another storage path"
        )
    return f"the storage {folder} cannot be used ({error.strerror or error}): give another storage path"


def check_command(command: list[str], environment: Mapping[str, str], working_dir: str) -> None:
    """The program is there; a Python script is there and parses; another interpreter than ours is new enough and has
    trainjob.
    """
    if not os.path.isdir(working_dir):
        raise LaunchError(f"the working directory {working_dir} does not exist")
    if not command:
        return
    program = _program(command[0], environment, working_dir)
    parsed = parse_python(command)
    if parsed is None:
        return
    same = os.path.realpath(program) == os.path.realpath(sys.executable) and os.path.dirname(
        program
    ) == os.path.dirname(sys.executable)
    if not same:
        check_interpreter(program, environment)
    if parsed.is_module:
        check_no_file(parsed.target, working_dir)
        if "-P" not in command:  # else Python looks for modules there first
            check_beside(working_dir)
    if parsed.is_module and same:
        check_module(parsed.target, environment, working_dir)
    if not parsed.is_module:
        check_script(os.path.join(working_dir, parsed.target), parse=same)


def _program(name: str, environment: Mapping[str, str], working_dir: str) -> str:
    found = shutil.which(os.path.join(working_dir, name) if "/" in name else name, path=environment.get("PATH"))
    if found is None:
        path = os.path.join(working_dir, name)
        why = (
            "is not executable"
            if "/" in name and os.path.exists(path)
            else "does not exist"
            if "/" in name
            else "is not in PATH"
        )
        raise LaunchError(
            f"the command's program {name!r} {why}: correct the command (this Python is {sys.executable})"
        )
    return found


HIDDEN = {"trainjob": "session", "trainjob_api": "contract.py", "torch": "version.py"}
"""Packages that a rank needs: a file or package of this name beside the script would be imported instead, as its folder
comes first. Each with what a folder has that is the package itself.
"""


def check_beside(folder: str) -> None:
    """No file there hides a package that ranks need."""
    for name, part in HIDDEN.items():
        package = os.path.join(folder, name)
        is_another = os.path.exists(os.path.join(package, "__init__.py")) and not os.path.exists(
            os.path.join(package, part)
        )
        path = package if is_another else f"{package}.py"
        if is_another or os.path.exists(path):
            raise LaunchError(f"{path} hides the package {name} from the script beside it: rename it")


def check_script(path: str, *, parse: bool) -> None:
    """The script can be read, and (for our own Python version) parsed."""
    if os.path.isdir(path) and not os.path.exists(os.path.join(path, "__main__.py")):
        raise LaunchError(f"the script {path} is a folder without a __main__.py: name a file")
    if not os.path.exists(path):
        raise LaunchError(f"the script {path} does not exist{_near(path)}")
    stem, suffix = os.path.splitext(os.path.basename(path))
    if suffix == ".py" and stem in HIDDEN:
        raise LaunchError(f"the script {path} hides the package {stem} from its own imports: rename it")
    check_beside(os.path.dirname(path) or ".")
    if not parse or not path.endswith(".py"):
        return
    try:
        with open(path, "rb") as file:
            compile(file.read(), path, "exec", dont_inherit=True)
    except OSError as error:
        raise LaunchError(f"the script {path} cannot be read: {error.strerror}") from error
    except (SyntaxError, ValueError) as error:
        raise LaunchError(_syntax_text(path, error)) from error


def _near(path: str) -> str:
    """What a missing script was likely meant to be."""
    from difflib import get_close_matches

    folder, name = os.path.split(path)
    try:
        there = {each[: -len(".py")]: each for each in sorted(os.listdir(folder)) if each.endswith(".py")}
    except OSError:
        return f": there is no folder {folder}"
    # What all have in common makes them no more alike.
    found = get_close_matches(os.path.splitext(name)[0], there, 1)
    return f"; did you mean {there[found[0]]}?" if found else ": check the path"


def check_no_file(name: str, working_dir: str) -> None:
    """`-m train.py`: Python would run the file as the package `train`, and then look for a module `py` in it."""
    stem, suffix = os.path.splitext(name)
    path = os.path.join(working_dir, name)
    if suffix != ".py" or not os.path.isfile(path) or os.path.isdir(os.path.join(working_dir, stem)):
        return
    parts = os.path.normpath(stem).split(os.sep)
    module = "" if {"", os.pardir} & set(parts) else f", or `-m {'.'.join(parts)}`"
    raise LaunchError(f"{name} is a file, and -m takes the name of a module: give it without -m{module}")


def check_module(name: str, environment: Mapping[str, str], working_dir: str) -> None:
    """The package or module of `-m name` is there; its inside is the rank's to find. For our own interpreter."""
    from difflib import get_close_matches

    top = name.partition(".")[0]
    extra = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    # sys.path[0] is the launcher's own; a rank has its working folder there.
    paths = [working_dir, *(os.path.join(working_dir, entry) for entry in extra), *sys.path[1:]]
    if top in sys.builtin_module_names or PathFinder.find_spec(top, paths) is not None or _by_other_finder(top):
        return
    near = get_close_matches(top, [info.name for info in pkgutil.iter_modules([working_dir, *extra])], 1)
    hint = f"; did you mean {near[0]}?" if near else f" (looked for in {working_dir}, PYTHONPATH and {sys.prefix})"
    raise LaunchError(f"there is no module {top}{hint}")


def _by_other_finder(name: str) -> bool:
    """Editable installs have finders of their own."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _syntax_text(path: str, error: SyntaxError | ValueError) -> str:
    if not isinstance(error, SyntaxError):
        return f"the script {path} is no Python source: {error}"
    shown = f": {error.text.strip()}" if error.text else ""
    return f"{type(error).__name__} in {path}, line {error.lineno}: {error.msg}{shown}"


def check_interpreter(program: str, environment: Mapping[str, str]) -> None:
    """Run it once: it must start, be Python 3.9 or newer, and find our library."""
    ask = (
        "import sys; print(sys.version_info[0], sys.version_info[1]); sys.stdout.flush(); import "
        "trainjob.session.errors"
    )
    try:
        answer = subprocess.run(
            [program, "-c", ask],
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=_PROBE_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(
            f"the interpreter {program} cannot be started ({error}): name another one in the command"
        ) from error
    words = answer.stdout.split()
    if len(words) < 2 or not all(word.isdigit() for word in words[:2]):
        last = answer.stderr.strip().splitlines()[-1:] or ["it says nothing"]
        raise LaunchError(f"{program} does not run as Python ({last[0]}): name another interpreter in the command")
    version = (int(words[0]), int(words[1]))
    if version < _OLDEST:
        raise LaunchError(
            f"{program} is Python {version[0]}.{version[1]}, and workers need {_OLDEST[0]}.{_OLDEST[1]} or newer: "
            f"name another interpreter, for example {sys.executable}"
        )
    if answer.returncode:
        last = answer.stderr.strip().splitlines()[-1:] or [""]
        raise LaunchError(
            f"{program} cannot import trainjob ({last[0]}): install it there (`{program} -m pip install {origin()}`), "
            f"or run with {sys.executable}"
        )

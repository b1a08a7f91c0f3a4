"""A rank of a trainer: `python -m trainjob.launch.worker <payload>`, started by the agent through
`trainjob.session.rank`.

Sets up what the framework needs (torch's process group), runs the user's training function, takes it down. Everything
about restarts, reports and errors is the session's and the agent's; nothing is caught here.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from trainjob.launch import nested
from trainjob.launch.errors import ConfigError, LaunchError
from trainjob_api import contract

if TYPE_CHECKING:
    from trainjob.launch.handover import payload
    from trainjob.launch.handover.validation import ValidationConfig

RETURN_LIMIT = 16 << 20
"""Bytes of a return value that goes through storage."""
CLOUDPICKLE = "cloudpickle.zip"
"""Beside a payload on a cluster: the launcher's own copy, so that both sides have the same version and the image
needs none.
"""


def main(arguments: list[str]) -> None:
    """Run the payload of that path as this rank."""
    if len(arguments) != 1:
        raise LaunchError(
            "usage: python -m trainjob.launch.worker PAYLOAD (the trainer starts this, through the agent)"
        )
    check_python(arguments[0])
    from trainjob.launch.handover import frameworks, payload  # not before: they are written for the launcher's Python

    header = payload.read_header(arguments[0])
    look_where_the_launcher_looked(header.sys_path)
    tell_session(header)
    nested.in_function = True
    frameworks.start(header)
    import_cloudpickle(os.path.join(os.path.dirname(arguments[0]), CLOUDPICKLE))
    content = payload.read(arguments[0])
    install_stop(content.stop)
    finish = install_validation(arguments[0], content.validation)
    try:
        returned = call(content.train_loop, content.config)
    except SystemExit as error:
        if not error.code:  # a report() that met the stop criterion
            frameworks.leave()
            finish()
        raise
    if os.environ.get("RANK", "0") == "0":
        _hand_over(header, returned)
    frameworks.stop()
    finish()


def tell_session(header: payload.Header) -> None:
    """What `get_experiment_name()` tells, and whose metrics are wanted."""
    from trainjob import session

    session.experiment_name, session.all_ranks = header.name, header.all_ranks


def look_where_the_launcher_looked(launchers: list[str]) -> None:
    """The launcher's import paths in its order, before this rank's own: a name means the same file on both sides.

    (Of the working folder there is nothing here to win over them: the trainer starts ranks with -P.)
    """
    sys.path[:] = [*launchers, *(entry for entry in sys.path if entry not in launchers)]


def check_python(path: str) -> None:
    """Refuse a payload of another Python version: byte code does not travel between them."""
    try:
        with open(path, "rb") as file:
            packed = str(json.loads(file.readline()).get("python"))
    except (OSError, ValueError, AttributeError) as error:
        raise LaunchError(f"{path} is no payload of a trainer: {error}") from error
    version = ".".join(map(str, sys.version_info[:2]))
    if packed != version:
        raise LaunchError(
            f"the training function was packed by Python {packed} and this rank runs {version}: use the same version "
            "in the launcher and in the image"
        )


def import_cloudpickle(archive: str) -> None:
    """From the archive if there is one; what the training function imports later is not looked for in it."""
    if not os.path.exists(archive):
        return
    sys.path.insert(0, archive)
    try:
        import cloudpickle  # noqa: F401
    finally:
        sys.path.remove(archive)


def call(loop: Callable[..., Any], config: Mapping[str, Any] | None) -> Any:
    """`f()`, `f(config)`, an object with `__call__`, or a class of such objects."""
    made: Any = loop() if inspect.isclass(loop) else loop
    target: Callable[..., Any] = made
    return target(dict(config or {})) if takes_config(target) else target()


def check_loop(loop: object) -> None:
    """Refuse what `call` could not call, in the launcher rather than in every rank."""
    if not callable(loop):
        raise ConfigError(
            "train_loop_per_worker",
            loop,
            "give a function f() or f(config), or a class whose instances are called like that",
        )
    if not inspect.isclass(loop):
        takes_config(loop)
        return
    method = next((vars(base)["__call__"] for base in loop.__mro__ if "__call__" in vars(base)), None)
    if method is None:
        raise ConfigError(
            "train_loop_per_worker",
            loop,
            "its instances cannot be called: give the class a method __call__(self, config)",
        )
    _positional(method, skip=1)


def takes_config(loop: Callable[..., Any]) -> bool:
    """Whether the function wants the config; ConfigError when it wants more than that."""
    return _positional(loop, skip=0)


def _positional(function: Callable[..., Any], skip: int) -> bool:
    try:
        parameters = list(inspect.signature(function).parameters.values())[skip:]
    except ValueError:  # a builtin without a signature
        return True
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]
    required = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if len(required) > 1 or any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters):
        raise ConfigError(
            "train_loop_per_worker",
            function,
            f"it needs the arguments {', '.join(required)}: write it as f() or f(config), and pass values in "
            "train_loop_config",
        )
    return bool(places)


def install_stop(criterion: Callable[..., bool] | Mapping[str, float] | None) -> None:
    """Have rank 0 ask the criterion at each report; all ranks end together when it says so."""
    if criterion is None:
        return
    from trainjob import session

    session.stop_criterion = predicate(criterion)


def install_validation(path: str, config: ValidationConfig | None) -> Callable[[], None]:
    """Have rank 0 validate the checkpoints of which report() asks it, or give up those that an attempt with another
    trainer left. What is returned waits for them.
    """
    from trainjob import session
    from trainjob.session.context import read

    who = read(os.environ)
    if config is None:
        # The first attempt of a run has none before it.
        if who.rank or who.storage is None or who.attempt == 1:
            return lambda: None
        return _give_up_validations(who.storage, who.run or 1)
    if who.rank:
        session.validate = lambda checkpoint, asked: None
        return lambda: None
    if who.storage is None:
        raise LaunchError("validation needs storage: checkpoints are read from there (RunConfig.storage_path)")
    from trainjob.launch.handover.validations import Validations

    found = Validations(path, config, who.storage, who.run or 1)
    found.start()
    session.validate = found.begin
    return found.finish


def _give_up_validations(storage: str, run: int) -> Callable[[], None]:
    """Beside the training: storage is asked."""
    import threading

    from trainjob.launch.handover.validations import give_up

    thread = threading.Thread(target=give_up, args=(storage, run), name="trainjob-validation", daemon=True)
    thread.start()
    return thread.join


def predicate(criterion: Callable[..., bool] | Mapping[str, float]) -> Callable[[Mapping[str, Any]], bool]:
    """One function of the metrics: thresholds are reached with >=; functions of (trial, metrics), as Ray Tune has
    them, get both.
    """
    if isinstance(criterion, Mapping):
        thresholds = dict(criterion)
        return lambda metrics: any(
            isinstance(metrics.get(name), int | float) and metrics[name] >= least for name, least in thresholds.items()
        )
    places = [
        p
        for p in inspect.signature(criterion).parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    if len(places) == 2:
        return lambda metrics: bool(criterion(os.environ.get("TRAINJOB_JOB", ""), metrics))
    return lambda metrics: bool(criterion(metrics))


def _hand_over(header: payload.Header, returned: Any) -> None:
    """Rank 0's return value: to the launcher on this machine, else to the agent, which brings it to the job's
    storage with the end of the run.
    """
    if header.return_path is not None:
        _leave(header.return_path, returned)
    elif not os.environ.get(contract.ENV_STORAGE):
        if returned is not None:
            print(
                "the return value of the training function is not kept: the job has no storage "
                "(RunConfig.storage_path)",
                file=sys.stderr,
            )
    elif path := os.environ.get(contract.ENV_RETURN_FILE):
        # Another attempt's must not count.
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)
        _leave(path, returned, RETURN_LIMIT, header.return_key)


def _leave(path: str, returned: Any, limit: int | None = None, key: str | None = None) -> None:
    """What rank 0's function returned, for Result.return_value; an object that cannot travel is left out with a
    line.
    """
    if returned is None:
        return
    import cloudpickle

    from trainjob.launch.handover import returned as seals

    try:
        body = cloudpickle.dumps(returned)
    except Exception as error:  # whatever a user's object raises while it is pickled
        print(
            f"the return value of the training function cannot be sent to the launcher: {error}. Result.return_value "
            "is None: return numbers, text or a state_dict, or save it in a checkpoint",
            file=sys.stderr,
        )
        return
    if limit is not None and len(body) > limit:
        print(
            f"the return value of the training function is not kept: {len(body) >> 20} MiB are more than "
            f"{limit >> 20} MiB; save it in a checkpoint",
            file=sys.stderr,
        )
        return
    with open(path + ".part", "wb") as file:
        file.write(body if key is None else seals.sealed(key, body))
    os.replace(path + ".part", path)


if __name__ == "__main__":
    main(sys.argv[1:])

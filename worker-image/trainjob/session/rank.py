"""The boot of one rank: `python [flags] -m trainjob.session.rank -- script.py args` (or `-- -m module args`).

Started by the agent, once per rank, or once for all with `--warm FD` (`session.warm`): then it goes on in each fork.
Both ways a script is run from the same frames, which a crash shows. Ties the rank's life to the agent's,
makes its stacks readable from outside, and then becomes `python script.py`: argv, sys.path[0], a fresh `__main__` that
multiprocessing's spawn can find again. An exception that leaves the script is told to the agent and then printed and
ended as Python would. Imports the standard library and the session alone, since each restart waits for it. Must run
before any thread exists.
"""

from __future__ import annotations

import builtins
import errno
import importlib.util
import os
import signal
import sys
import types
from importlib.machinery import PathFinder, SourceFileLoader
from typing import Any, List, NoReturn, Optional, Sequence, Tuple

from trainjob.session import (
    failure,
    gloo_threads,
    imported,
    large_imports,
    link,
    rendezvous,
    short_exit,
    stacks,
    temporary,
    tie,
    torch_folder,
    unchanged,
)
from trainjob_api import contract, first_path

_SAFE_PATH = bool(getattr(sys.flags, "safe_path", False) or sys.flags.isolated)
"""-P or -I: Python then puts no folder of ours in front of sys.path, and neither do we."""


_PASSING = (
    errno.EIO,
    errno.ESTALE,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EINTR,
    errno.ETIMEDOUT,
    errno.EBUSY,
)
"""Troubles of a volume or a machine, not of the command: another start may go well."""
_MOST_RAISED = 100
"""By a handler in a row: a DataLoader has fewer processes."""


class StartError(Exception):
    """The command cannot run at all; starting it again cannot help."""


def main(arguments: List[str]) -> None:
    """Run the command behind `--`, or the one that a fork is given; returns when it ended by itself, raises SystemExit
    with its exit code otherwise.
    """
    short_exit.register()
    gloo_threads.let_finish()
    if arguments[:1] == [contract.WARM]:
        from trainjob.session import warm

        command = warm.command(int(arguments[1]))
    elif arguments[:1] == [contract.KEEP]:
        from trainjob.session import warm

        command = warm.keep(arguments[1])
    else:
        command = arguments[arguments.index("--") + 1 :] if "--" in arguments else arguments
        agent = os.environ.get(contract.ENV_AGENT_PID)
        if agent is not None:
            tie.tie_to(int(agent))
        large_imports.quiet()
    _run(command)


def _run(command: Sequence[str]) -> None:
    """Become the program, in a process that is tied to the agent; ends as `main` does."""
    short_exit.here()
    stacks.make_readable()
    temporary.mark_names(os.environ.get(contract.ENV_TMP_MARK, ""))
    torch_folder.renew()
    rendezvous.use_agent_store()
    unchanged.find_all_ranks()
    if contract.ENV_AGENT_SOCKET in os.environ:
        os.environ[contract.ENV_RANK_PID] = str(os.getpid())
        link.boot()
    try:
        code, module = _prepare(command)
    except (StartError, SyntaxError) as error:
        _end(contract.END_START, error)
    except Exception as error:  # a package's __init__ raised while `-m package.module` was looked up
        _end(contract.END_EXCEPTION, error)
    sys.path[:0] = imported.front
    _become(module)
    try:
        try:
            exec(code, module.__dict__)
        finally:
            _flush_after(module)
    except SystemExit as error:
        link.tell_leaving(link.exit_code(error), error)
        short_exit.with_code(link.exit_code(error))
        raise
    except KeyboardInterrupt:
        link.tell_leaving(128 + signal.SIGINT)
        raise
    except BaseException as error:  # the top of the user's program
        _end(contract.END_EXCEPTION, error)
    link.tell_leaving(0)
    short_exit.with_code(0)


def _prepare(command: Sequence[str]) -> Tuple[types.CodeType, types.ModuleType]:
    """The compiled code and the empty `__main__` for a command; sets sys.argv and sys.path[0]."""
    if not command:
        raise StartError("there is no command behind `--`: expected `script.py [arguments]` or `-m module [arguments]`")
    if command[0] == "-m":
        if len(command) < 2:
            raise StartError("`-m` needs the name of a module")
        return _prepare_module(command[1], command[2:])
    return _prepare_script(command[0], command[1:])


def _prepare_script(path: str, arguments: Sequence[str]) -> Tuple[types.CodeType, types.ModuleType]:
    sys.argv = [path, *arguments]
    full = os.path.join(os.getcwd(), path)
    first = first_path.folder_of(path, os.getcwd())
    if first_path.holds_main(full):
        # `python folder` and `python archive.zip` run the __main__.py inside, which is then imported as a module.
        _set_first_path(first)
        spec = PathFinder.find_spec("__main__", [full])
        if spec is None:
            raise StartError(f"cannot find '__main__' module in {path!r}")
        return _from_spec(spec, "__main__")
    try:
        with open(full, "rb") as file:
            source = file.read()
    except OSError as error:
        if error.errno in _PASSING:
            raise
        raise StartError(f"can't open file {full!r}: [Errno {error.errno}] {error.strerror}") from None
    try:
        code = compile(source, full, "exec", dont_inherit=True)
    except ValueError as error:  # null bytes
        raise StartError(f"{path}: {error}") from None
    _set_first_path(first)
    module = types.ModuleType("__main__")
    # No __spec__: multiprocessing's spawn then runs the file again by its path, as for any script.
    module.__dict__.update(
        __file__=full, __spec__=None, __package__=None, __cached__=None, __loader__=SourceFileLoader("__main__", full)
    )
    return code, module


def _prepare_module(name: str, arguments: Sequence[str]) -> Tuple[types.CodeType, types.ModuleType]:
    sys.argv = ["-m", *arguments]
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            # A package is run by its __main__ module.
            name += ".__main__"
            spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        # A parent package that is missing; a missing import inside an existing parent is the user's own error.
        if error.name is None or not (name + ".").startswith(error.name + "."):
            raise
        spec = None
    except ValueError as error:  # relative names
        raise StartError(f"-m {name}: {error}") from None
    if spec is None:
        raise StartError(f"No module named {name!r} (searched the working folder {os.getcwd()!r} and sys.path)")
    code, module = _from_spec(spec, name)
    sys.argv[0] = str(module.__dict__["__file__"])
    return code, module


def _from_spec(spec: Any, name: str) -> Tuple[types.CodeType, types.ModuleType]:
    get_code = getattr(spec.loader, "get_code", None)
    code: Optional[types.CodeType] = get_code(name) if get_code is not None else None
    if code is None:
        raise StartError(f"{name!r} has no Python code that could be run")
    module = types.ModuleType("__main__")
    module.__dict__.update(
        __file__=spec.origin, __spec__=spec, __package__=spec.parent, __cached__=spec.cached, __loader__=spec.loader
    )
    return code, module


def _set_first_path(folder: str) -> None:
    # `python -m trainjob.session.rank` put the working folder there; a script has its own folder instead.
    if not _SAFE_PATH:
        sys.path[0] = folder


def _flush_after(module: types.ModuleType) -> None:
    """Python does when a script is over, not when a module is: before threads are waited for, and all else at exit."""
    for name in () if module.__dict__.get("__spec__") is not None else ("stderr", "stdout"):
        try:
            getattr(sys, name).flush()
        except Exception:  # it is tried again at exit, which tells of it
            continue


_boot_module: Optional[types.ModuleType] = None


def _become(module: types.ModuleType) -> None:
    # The old __main__ is this very code while it runs: it must not be collected.
    global _boot_module
    _boot_module = sys.modules["__main__"]
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    if "__mp_main__" in sys.modules:
        # multiprocessing was imported before: what its children send back is looked for under this name.
        sys.modules["__mp_main__"] = module


def _end(kind: str, error: BaseException) -> NoReturn:
    _hear_of_no_child()
    error.__traceback__ = failure.own_frames_dropped(error.__traceback__) if kind == contract.END_EXCEPTION else None
    link.tell_agent(kind, error)
    if isinstance(error, StartError):
        print(f"{sys.executable}: {error}", file=sys.stderr)
    else:
        # The script may have set its own hook (rich, wandb, ...): it prints, the word to the agent went out before.
        _show(failure.loader_kill(error) or error)
    short_exit.with_code(1)
    sys.exit(1)


def _show(error: BaseException) -> None:
    """By the script's own hook, as Python does; what is to be done at exit may look at what ended the script. Raises
    SystemExit: the hook wants another end.
    """
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    if not hasattr(sys, "excepthook"):
        _say("sys.excepthook is missing\n", error)
        return
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit:
        raise
    except BaseException as failed:
        failed.__traceback__ = None if failed.__traceback__ is None else failed.__traceback__.tb_next
        failed.__context__ = None if failed.__context__ is error else failed.__context__
        _say("Error in sys.excepthook:\n", failed)
        _say("\nOriginal exception was:\n", error)


def _say(words: str, error: BaseException) -> None:
    if sys.stderr is not None:
        sys.stderr.write(words)
    sys.__excepthook__(type(error), error, error.__traceback__)


def _hear_of_no_child() -> None:
    """The script is over. torch's handler of SIGCHLD raises for each process of a DataLoader that was killed, in
    whatever runs: the next one would take the place of what ended the script.
    """
    for _ in range(_MOST_RAISED):
        try:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return
        except Exception:  # it raised first
            continue


if __name__ == "__main__":
    main(sys.argv[1:])

"""How a rank's exception is told: the traceback as the user wants to read it, and whether it only speaks of a lost
peer.

Called by `rank` (exceptions that leave the script) and by the launcher's worker main. The full traceback goes to stderr
as always; what is made here is the short form for the job's status. Must not raise, whatever the exception does.
"""

from __future__ import annotations

import errno
import os
import pickle
import re
import signal
import traceback
from types import TracebackType
from typing import Any, Dict, Iterator, List, Optional

from trainjob.session import errors, relayed
from trainjob_api import contract

CHAIN_LIMIT = 10
_CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"

# Frames that every rank has and no reader needs. Matched against the path with forward slashes.
_WRAPPERS = re.compile(
    r"<frozen (runpy|importlib)|/runpy\.py$|/importlib/_bootstrap|"
    r"/torch/distributed/(elastic|run|launcher|c10d_logger)|/torch/nn/modules/module\.py$|/torch/nn/parallel/distributed\.py$|"
    r"/torch/utils/data/(dataloader|_utils/(worker|fetch))\.py$|/torch/_utils\.py$|"
    r"/torch/utils/_contextlib\.py$|/torch/_tensor\.py$|/torch/autograd/(__init__|graph)\.py$"
)
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))).replace(os.sep, "/") + "/"
_API = os.path.dirname(os.path.abspath(contract.__file__)).replace(os.sep, "/") + "/"
_LIBRARY = re.compile(r"/(site|dist)-packages/|^<")
_STDLIB = os.path.dirname(os.__file__).replace(os.sep, "/") + "/"

# What the back-ends say when a peer or the store went away. OSError itself is no sign: user code has sockets too.
_COMMUNICATION_TYPES = frozenset(("DistBackendError", "DistNetworkError", "DistStoreError"))
# Libraries whose errors of a lost peer are no RuntimeErrors, by the package that defines them.
_WITH_OWN_ERRORS = frozenset(("tensorflow", "xgboost", "lightgbm"))
# JAX raises a mere ValueError.
_OF_JAX = re.compile(r"[A-Z_]+: Gloo \w+ failed: ")
# torch.save() to a full volume.
_FULL_TEXT = re.compile(r"PytorchStreamWriter failed writing|No space left on device")
_LOADER_KILLED = re.compile(r"DataLoader worker \(pid \d+\) is killed by signal: ")
# What a rank meets whose loader's process goes while it hands a batch over, before torch has noticed.
_LOADER_FRAME = re.compile(r"/torch/utils/data/dataloader\.py$")
_LOADER_BROKE = (OSError, EOFError, pickle.UnpicklingError)
_LOADER_BROKE_TEXT = re.compile(r"exited unexpectedly|items of ancdata|shared memory")
_LOADER_PATIENCE_S = 0.5
_COMMUNICATION_TEXT = re.compile(contract.LOST_PEER_TEXT, re.DOTALL)


def is_communication(error: BaseException) -> bool:
    """True when `error`, or what it was raised from, speaks of a lost peer: another rank's end is then the likely
    cause.
    """
    for current in _raised_from(error):
        if isinstance(current, (errors.RankGoneError, errors.BarrierTimeoutError, errors.AgentLostError)):
            return True
        if type(current).__name__ in _COMMUNICATION_TYPES:
            return True
        if _is_of_a_library(current) and _COMMUNICATION_TEXT.search(_text(current)):
            return True
    return False


def _is_of_a_library(error: BaseException) -> bool:
    """Of those whose words about peers are known: the same words in a user's own error speak of a socket of theirs."""
    if isinstance(error, RuntimeError):
        return not isinstance(error, errors.TrainJobError)
    package = type(error).__module__.partition(".")[0]
    return package in _WITH_OWN_ERRORS or (isinstance(error, ValueError) and _OF_JAX.match(_text(error)) is not None)


def no_room(error: BaseException) -> str:
    """What to do where a rank ends because a volume is full; empty: it does not. What a rank writes to TMPDIR is on the
    volume of the staged checkpoints, and which one was full the system does not say.
    """
    for current in _raised_from(error):
        if isinstance(current, errors.TrainJobError):  # that one says what to do
            return ""
        if (isinstance(current, OSError) and current.errno in (errno.ENOSPC, errno.EDQUOT)) or (
            isinstance(current, RuntimeError) and _FULL_TEXT.search(_text(current))
        ):
            return (
                f" (a volume is full: if what was written went to TMPDIR, {os.environ.get('TMPDIR', '/tmp')}, that is "
                "where checkpoints are staged too; on a cluster spec.checkpoint.staging.sizeLimit gives it more room)"
            )
    return ""


def describe(error: BaseException) -> Dict[str, Any]:
    """The `contract.RankError` for an exception."""
    gone = _loader_gone(error)
    if gone is not None:
        gone.__cause__ = error
        error = gone
    return {
        "type": _type(error),
        "message": (_said(error) + no_room(error))[: contract.MESSAGE_LIMIT],
        "traceback": format_traceback(error),
        "communication": gone is None and is_communication(error),
    }


def format_traceback(error: BaseException, limit: int = contract.TRACEBACK_LIMIT) -> str:
    """The traceback without wrapper frames. Too long: library frames below the user's go first, then the beginning."""
    text = _chain(error, shorten=False)
    if len(text) > limit:
        text = _chain(error, shorten=True)
    return text if len(text) <= limit else "..." + text[-(limit - 3) :]


def own_frames_dropped(tb: Optional[TracebackType]) -> Optional[TracebackType]:
    """The traceback from the first frame that is not a rank's boot, for printing: as `python script.py` would show
    it.
    """
    first = tb
    while first is not None and _is_wrapper(first.tb_frame.f_code.co_filename):
        first = first.tb_next
    return first or tb


def loader_kill(error: BaseException) -> Optional[BaseException]:
    """What to print where a process of a DataLoader was killed: torch raises for it wherever the rank's main thread is,
    and its frames tell nothing of the kill. The sentence that names the signal, at the caller's own frames. None: it is
    something else.
    """
    for current in _raised_from(error):
        if isinstance(current, RuntimeError) and _LOADER_KILLED.search(_text(current)):
            shown = RuntimeError(_text(current))
            shown.__suppress_context__ = True
            return shown.with_traceback(_users(error.__traceback__) or _users(current.__traceback__))
    return _loader_gone(error)


def _loader_gone(error: BaseException) -> Optional[BaseException]:
    """torch's own sentence, where a process of a DataLoader was killed and the rank met that as something else first:
    a connection that broke, a batch whose memory is gone. None: no such process was killed.
    """
    chain = list(_raised_from(error))
    if any(_LOADER_KILLED.search(_text(current)) for current in chain):
        return None
    for current in chain:
        broke = isinstance(current, _LOADER_BROKE) or (
            isinstance(current, RuntimeError) and _LOADER_BROKE_TEXT.search(_text(current))
        )
        workers = _loader_workers(current.__traceback__) if broke else []
        # An error of a process that lives comes as it is: nothing is waited for.
        if workers and relayed.of(_text(current), _is_wrapper) is None:
            from multiprocessing import connection  # here: no rank pays for it that has no such loader

            ended = connection.wait([worker.sentinel for worker in workers], _LOADER_PATIENCE_S)
            for worker in workers:
                if worker.sentinel in ended:
                    worker.join(_LOADER_PATIENCE_S)  # its sentinel closes a moment before it has ended
        for worker in workers:
            # torch ends those that are left by SIGTERM.
            if (worker.exitcode or 0) < 0 and worker.exitcode != -signal.SIGTERM:
                word = signal.strsignal(-worker.exitcode) or f"signal {-worker.exitcode}"
                gone = RuntimeError(f"DataLoader worker (pid {worker.pid}) is killed by signal: {word}. ")
                gone.__suppress_context__ = True
                return gone.with_traceback(_users(error.__traceback__) or _users(current.__traceback__))
    return None


def _loader_workers(tb: Optional[TracebackType]) -> List[Any]:
    """The processes of the DataLoader that a traceback goes through."""
    while tb is not None:
        if _LOADER_FRAME.search(_path(tb.tb_frame.f_code.co_filename)):
            workers = getattr(tb.tb_frame.f_locals.get("self"), "_workers", None)
            if workers:
                return list(workers)
        tb = tb.tb_next
    return []


def _users(tb: Optional[TracebackType]) -> Optional[TracebackType]:
    """The frames of the user's own files; None: there are none."""
    if tb is None:
        return None
    below = _users(tb.tb_next)
    name = tb.tb_frame.f_code.co_filename
    if not _is_user(name) or _is_wrapper(name) or _path(name).startswith(_API):
        return below
    return TracebackType(below, tb.tb_frame, tb.tb_lasti, tb.tb_lineno)


def _raised_from(error: BaseException) -> Iterator[BaseException]:
    """It, what it was raised from, and so on, as a traceback shows them; a chain that is endless or very long is cut
    off.
    """
    seen: List[int] = []
    current: Optional[BaseException] = error
    while current is not None and id(current) not in seen and len(seen) < CHAIN_LIMIT:
        seen.append(id(current))
        yield current
        if current.__cause__ is not None:
            current = current.__cause__
        else:
            current = None if current.__suppress_context__ else current.__context__


def _chain(error: BaseException, shorten: bool) -> str:
    parts: List[str] = []
    below: Optional[BaseException] = None
    for current in _raised_from(error):
        if below is not None:
            parts.append(_CONTEXT if below.__cause__ is None else _CAUSE)
        parts.append(_one(current, shorten, is_cause=below is not None))
        below = current
    return "".join(reversed(parts)).rstrip("\n")


def _one(error: BaseException, shorten: bool, *, is_cause: bool) -> str:
    every = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in every if not _is_wrapper(frame.filename)] or list(every)
    if is_cause and not any(_is_user(frame.filename) for frame in frames if not _is_wrapper(frame.filename)):
        frames = []  # it happened inside of a library; the rank's log has where
    lines: List[str] = []
    if frames:
        lines.append("Traceback (most recent call last):\n")
        last_user = max((index for index, frame in enumerate(frames) if _is_user(frame.filename)), default=-1)
        hidden = len(frames) - last_user - 2
        if shorten and last_user >= 0 and hidden > 0:
            lines += traceback.format_list(frames[: last_user + 1])
            lines.append(f"  ... {hidden} library frame{'s' if hidden > 1 else ''} left out ...\n")
            lines += traceback.format_list(frames[-1:])
        else:
            lines += traceback.format_list(frames)
    other = relayed.of(_text(error), _is_wrapper)
    if other is None:
        lines += traceback.format_exception_only(type(error), error)
    else:
        lines += [f"{line}\n" for line in (f"{other.where}:", *other.frames, *other.lines)]
    return "".join(lines)


def _is_user(filename: str) -> bool:
    path = _path(filename)
    return not _LIBRARY.search(path) and not path.startswith(_STDLIB)


def _is_wrapper(filename: str) -> bool:
    path = _path(filename)
    return path.startswith(_OURS) or bool(_WRAPPERS.search(path))


def _path(filename: str) -> str:
    return filename.replace(os.sep, "/")


def _type(error: BaseException) -> str:
    """Its name. Of one that happened in another process and could not be made anew: what it was there."""
    kind, other = type(error), relayed.of(_text(error), _is_wrapper)
    if other is not None and other.name != kind.__name__:
        return other.type
    return ("" if kind.__module__ in ("builtins", "__main__") else kind.__module__ + ".") + kind.__qualname__


def _said(error: BaseException) -> str:
    """Its message. Of one that happened in another process: what happened there, and where that is."""
    text = _text(error)
    other = relayed.of(text, _is_wrapper)
    if other is None:
        return text
    return f"{other.message} ({other.where})" if other.message else other.where


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:  # a user's __str__ may raise anything, and this is the last word of a rank
        return f"<str() of the {type(error).__name__} raised {type(broken).__name__}>"

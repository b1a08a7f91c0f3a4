"""What torch's flight recorder has of this rank's collectives, readable from outside: a thread waits on a socket beside
the stacks' files and answers the agent, also while the main thread is inside a collective that does not end.

Begun by `milestones` once there is a process group. Nothing is recorded for it: torch does so by itself. Where it
cannot be had (no room, an older torch, TORCH_FR_BUFFER_SIZE=0) hangs are told by the stacks alone. Must not raise.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from _thread import start_new_thread  # by name: programs replace what these modules have (gevent)
from socket import AF_UNIX, socket
from typing import Any, Dict, List, Mapping, Optional

from trainjob_api import contract
from trainjob_api.recorded_calls import CALLS_EACH, DEFAULT_GROUP, GROUPS_LIMIT, RECORDED, TEXT_LIMIT, Call, Calls

_TORCH = "torch._C._distributed_c10d"
_DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
"""Of the backends on CPU, and of NCCL."""
_SENDS_WITHIN_S = 1.0
_UNEVEN = ("all_to_all", "alltoall", "scatter")
"""How the operations begin whose tensors may differ from rank to rank."""

_served: Optional[socket] = None
_since_ns = 0
"""What was recorded before is of groups that are no more: later ones have their names and count anew."""


def serve() -> None:
    """From now on; does nothing the second time, where this rank has no agent that could ask, or in a process that it
    has started.
    """
    global _served
    folder, rank = os.environ.get(contract.ENV_STACK_FOLDER), os.environ.get(contract.ENV_RANK)
    owner = os.environ.get(contract.ENV_RANK_PID)
    if _served is not None or not folder or not rank or not _has_record() or owner not in (None, str(os.getpid())):
        return
    listener = socket(AF_UNIX)
    path = os.path.join(folder, contract.FLIGHT_SOCKET.format(rank=rank))
    try:
        if os.path.exists(path):
            os.unlink(path)  # of the attempt before
        listener.bind(path)
        listener.listen(4)
        _start(listener)
    except (OSError, RuntimeError):  # no room, no thread
        listener.close()
    else:
        _served = listener


def forget() -> None:
    """All groups were destroyed."""
    global _since_ns
    _since_ns = time.time_ns()


def _start(listener: socket) -> None:
    # A process's signals must find its main thread.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        # Not threading's: the program counts its own threads.
        start_new_thread(_answer, (listener, os.fstat(listener.fileno()).st_ino))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _answer(listener: socket, inode: int) -> None:
    try:
        # The program may have closed all files, and opened its own under this number.
        while os.fstat(listener.fileno()).st_ino == inode:
            asker, _ = listener.accept()
            with asker:
                asker.settimeout(_SENDS_WITHIN_S)
                _tell(asker)
    except (OSError, ValueError):
        return


def _tell(asker: socket) -> None:
    try:
        asker.sendall(json.dumps(RECORDED.frame(Calls(tuple(calls())))[0]).encode())
    except Exception:
        return  # whoever asks gets nothing, or has gone


def _has_record() -> bool:
    module = sys.modules.get(_TORCH)
    return module is not None and any(hasattr(module, name) for name in _DUMPS)


def calls() -> List[Call]:
    """The last collectives of each group. Raises whatever torch raises."""
    module = sys.modules.get(_TORCH)
    dumps = [getattr(module, name) for name in _DUMPS if hasattr(module, name)]
    records = [json.loads(dump(includeCollectives=True, onlyActive=False)) for dump in dumps]
    used = [record for record in records if record.get("entries")] or records[:1]
    return [call for record in used for call in last_calls(record, _since_ns)]


def last_calls(record: Mapping[str, Any], since_ns: int = 0) -> List[Call]:
    """Of a record as torch writes it (version 2.x), CALLS_EACH of each of the GROUPS_LIMIT groups used last. That a
    whole one has nothing of the group of all ranks is told.
    """
    groups: Dict[str, List[Call]] = {}
    entries = record.get("entries", ())
    for entry in entries:
        if not entry["is_p2p"] and entry["time_created_ns"] >= since_ns:
            call = _call(entry)
            # Anew: the group used last stands last.
            groups[call.group] = [*groups.pop(call.group, []), call][-CALLS_EACH:]
    is_whole = len(groups) <= GROUPS_LIMIT and (not entries or entries[0]["record_id"] == 0)
    none = [Call(DEFAULT_GROUP, 0, "", "", True)] if is_whole and DEFAULT_GROUP not in groups else []
    return none + [call for group in list(groups.values())[-GROUPS_LIMIT:] for call in group]


def _call(entry: Mapping[str, Any]) -> Call:
    what = str(entry["profiling_name"]).rpartition(":")[2].lstrip("_")
    tensors = [f"{size} {kind.lower()}" for size, kind in zip(entry["input_sizes"], entry["input_dtypes"])]
    return Call(
        group=_group(*entry["process_group"])[:TEXT_LIMIT],
        number=int(entry["collective_seq_id"]),
        what=what[:TEXT_LIMIT],
        sizes="" if what.startswith(_UNEVEN) else ", ".join(tensors)[:TEXT_LIMIT],
        ended=bool(entry["retired"]) or entry["state"] == "completed",
    )


def _group(name: str, description: str) -> str:
    """The groups of a mesh's one dimension have the same description."""
    if description == DEFAULT_GROUP:
        return description
    return name if description in ("", "undefined") else f"{name} ({description})"

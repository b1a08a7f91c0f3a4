"""What torch's flight recorder has of this rank's collectives: told to the agent with the stacks (`answering`).

Begun by `milestones` once there is a process group. Nothing is recorded for it: torch does so by itself. Where it
cannot be had (an older torch, TORCH_FR_BUFFER_SIZE=0) hangs are told by the stacks alone.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from contextlib import suppress
from typing import Any, Dict, List, Mapping, Optional

from trainjob_api.recorded_calls import CALLS_EACH, DEFAULT_GROUP, GROUPS_LIMIT, TEXT_LIMIT, Call

_TORCH = "torch._C._distributed_c10d"
_DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
"""Of the backends on CPU, and of NCCL."""
_DRIVER = "libcuda.so.1"
"""CUDA has loaded it."""
_CAPTURE_MODE_RELAXED = 2
_UNEVEN = ("all_to_all", "alltoall", "scatter")
"""How the operations begin whose tensors may differ from rank to rank."""

_begun = False
_since_ns = 0
"""What was recorded before is of groups that are no more: later ones have their names and count anew."""


def begin() -> None:
    """There is a process group."""
    global _begun
    _begun = True


def forget() -> None:
    """All groups were destroyed."""
    global _since_ns
    _since_ns = time.time_ns()


def calls() -> Optional[List[Call]]:
    """The last collectives of each group; None: there was none yet, or this torch keeps no record. Raises whatever
    torch raises.
    """
    module = sys.modules.get(_TORCH)
    dumps = [getattr(module, name) for name in _DUMPS if hasattr(module, name)]
    if not _begun or not dumps:
        return None
    _stay_on_its_devices()
    records = [json.loads(dump(includeCollectives=True, onlyActive=False)) for dump in dumps]
    used = [record for record in records if record.get("entries")] or records[:1]
    return [call for record in used for call in last_calls(record, _since_ns)]


def _stay_on_its_devices() -> None:
    """A new thread is on the first device. CUDA would begin there (some hundred MiB, of each rank of a machine) when
    torch asks it, for its record, whether a collective has ended.
    """
    cuda: Any = sys.modules.get("torch.cuda")
    core: Any = sys.modules.get("torch._C")
    if cuda is not None and cuda.is_initialized():
        begun = [device for device in range(cuda.device_count()) if core._cuda_hasPrimaryContext(device)]
        if begun:
            cuda.set_device(begun[0])
        _leave_captures_alone()


def _leave_captures_alone() -> None:
    """That question ends a capture of a CUDA graph in another thread, unless this one says that it has nothing to do
    with it.
    """
    mode = ctypes.c_int(_CAPTURE_MODE_RELAXED)
    with suppress(OSError, AttributeError):  # ROCm
        ctypes.CDLL(_DRIVER).cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


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

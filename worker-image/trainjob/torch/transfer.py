"""Batches from the host to this rank's device, the next one while the step before still computes.

Used by `loader` for devices that are not the CPU. Moves tensors in dicts, lists, tuples and anything with `.to()`.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator, List, Mapping

import torch


def moved(batches: Iterator[Any], device: torch.device, overlap: bool) -> Iterator[Any]:
    """The batches on `device`. With `overlap` (CUDA) each is copied on a stream of its own, one batch ahead."""
    if overlap and device.type == "cuda":
        return _ahead(batches, device)
    return (to_device(batch, device) for batch in batches)


def still_works(device: torch.device) -> Callable[[], bool]:
    """Whether the step before this one still computes there when it is asked: then nobody waits for the next batch."""
    if device.type != "cuda":
        return lambda: False
    return lambda: not torch.cuda.current_stream(device).query()


def to_device(value: Any, device: torch.device, non_blocking: bool = False) -> Any:
    """`value` with all its tensors on `device`; containers keep their types, other things pass as they are."""
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=non_blocking)
    if isinstance(value, Mapping):
        items = {key: to_device(item, device, non_blocking) for key, item in value.items()}
        return items if type(value) is dict else _like(value, items)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(to_device(item, device, non_blocking) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)([to_device(item, device, non_blocking) for item in value])
    move = getattr(value, "to", None)
    return move(device) if callable(move) else value


def _like(value: Any, items: Any) -> Any:
    # Batch types of libraries that are mappings know best how to move themselves.
    move = getattr(value, "to", None)
    if callable(move) and items:
        return move(next((item.device for item in items.values() if isinstance(item, torch.Tensor)), None))
    try:
        return type(value)(items)
    except TypeError:
        return items


def _ahead(batches: Iterator[Any], device: torch.device) -> Iterator[Any]:
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    nothing = object()

    def fetch() -> Any:
        batch = next(batches, nothing)
        if batch is nothing:
            return nothing
        with torch.cuda.stream(stream):
            return to_device(batch, device, non_blocking=True)

    upcoming = fetch()
    while upcoming is not nothing:
        current = upcoming
        # Order: the step waits for its own batch only, then the copy of the next one is queued behind it on our stream.
        torch.cuda.current_stream(device).wait_stream(stream)
        for tensor in _tensors(current):
            # The memory belongs to our stream's pool: it must not be given away while the step's stream reads it.
            tensor.record_stream(torch.cuda.current_stream(device))
        upcoming = fetch()
        yield current


def _tensors(value: Any) -> List[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    elif not isinstance(value, (list, tuple)):
        value = list(getattr(value, "__dict__", {}).values())
    return [tensor for item in value for tensor in _tensors(item)] if value else []

"""Keyword arguments that do not exist, told with the one that was meant; checked before the call, so that a TypeError
from inside is left as it is.
"""

from __future__ import annotations

import functools
import inspect
import re
from typing import Any, Callable, Dict, Mapping, Sequence, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)


def told(function: F) -> F:
    """The function, whose unknown keywords are told. Of one whose first argument is a dict of metrics the way out is
    that dict.
    """
    names = list(inspect.signature(function).parameters)
    known, travels = frozenset(names), function.__name__ if names[0] == "metrics" else ""

    @functools.wraps(function)
    def checked(*args: Any, **given: Any) -> Any:
        if not known.issuperset(given):
            _refuse(f"{function.__name__}()", given, names, travels=travels)
        return function(*args, **given)

    return cast(F, checked)


def told_of(ways_out: Mapping[str, Mapping[str, str]]) -> Callable[[C], C]:
    """For a class: its constructor tells of unknown keywords. `ways_out`: by the class's name, what to do instead of
    keywords that people know from elsewhere.
    """
    return lambda made: _told_of(made, ways_out.get(made.__name__, {}))


def _told_of(made: C, ways_out: Mapping[str, str]) -> C:
    parameters = inspect.signature(made).parameters
    names = list(parameters)
    placed = sum(each.kind is not each.KEYWORD_ONLY for each in parameters.values())
    before: Callable[..., None] = made.__init__  # type: ignore[misc]  # its own, or the one that it inherits

    @functools.wraps(before)
    def checked(self: Any, *args: Any, **given: Any) -> None:
        if not set(given) <= set(names):
            _refuse(made.__name__, given, names, ways_out=ways_out)
        if len(args) > placed:
            raise TypeError(f"{made.__name__}: {_by_name(args[placed], names[placed:])}")
        before(self, *args, **given)

    type.__setattr__(made, "__init__", checked)
    if getattr(getattr(made, "__dataclass_params__", None), "frozen", False):
        type.__setattr__(made, "__setattr__", _assigned(made, names))
    return made


def _assigned(made: type, names: Sequence[str]) -> Callable[[Any, str, Any], None]:
    """For a frozen class: an assignment to a field tells how it is changed."""
    before: Callable[..., None] = made.__setattr__

    def refused(self: Any, name: str, value: Any) -> None:
        if name not in names:
            before(self, name, value)
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(
            f"{made.__name__}.{name} cannot be assigned: give it when you make the {made.__name__}, or make another "
            f"one with dataclasses.replace(..., {name}=...)"
        )

    return refused


def _by_name(value: Any, names: Sequence[str]) -> str:
    """For a value in a place that takes none. A ScalingConfig is the `scaling_config`."""
    likely = re.sub(r"(?<!^)(?=[A-Z])", "_", type(value).__name__).lower()
    if likely in names:
        return f"give the {type(value).__name__} by name, {likely}=..."
    return f"give the value {value!r} by name, as one of {', '.join(names)}"


def _refuse(
    what: str, given: Dict[str, Any], names: Sequence[str], travels: str = "", ways_out: Mapping[str, str] = {}
) -> None:
    from difflib import get_close_matches

    wrong = next(name for name in given if name not in names)
    near = get_close_matches(wrong, names, 1, cutoff=0.7)
    if wrong in ways_out:
        hint = f": {ways_out[wrong]}"
    elif near:
        hint = f"; did you mean {near[0]!r}?"
    elif travels:
        hint = f": metrics travel in one dict, {travels}({{{wrong!r}: ...}})"
    else:
        hint = f"; its arguments: {', '.join(names)}"
    raise TypeError(f"{what} has no argument {wrong!r}{hint}")

"""Messages as types: a frame's JSON object is checked once, where it comes in, and made once for all who get it.

A message is a NamedTuple; its fields are the object's, `blob` is the frame's blob. A `Vocabulary` names the messages
that go one way over a connection. Fields that are not sent have their default; fields that nobody knows are passed
over. Used by both ends of the rank's socket and by agents. Standard library only, Python 3.9; no dataclasses, which a
rank would have to import.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping as AnyMapping
from typing import (
    Any,
    Callable,
    Dict,
    Generic,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
    Type,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from trainjob_api import wire

T = TypeVar("T")
Object = Mapping[str, Any]
"""A JSON object whose inside is not looked at."""
WHOLE_LIMIT = 2**64
"""No number that we send is larger: those of checksums are just below."""
TEXT_LIMIT = 300
"""Characters of a refusal."""

_Change = Callable[[Any], Any]


class BadMessage(ValueError):
    """A frame that makes no sense: names the message and the field."""


class _Field(NamedTuple):
    name: str
    check: _Change
    tell: Optional[_Change]
    """From the value to JSON; None: json does it."""
    required: bool
    default: Any


_MISSING: Any = object()


class Blob(NamedTuple):
    """A field that travels as the frame's blob, in a form of its own."""

    field: str
    parse: Callable[[bytes], Any]
    """Raises ValueError."""
    encode: Callable[[Any], bytes]


class Packed(NamedTuple):
    """A word that travels as a blob without JSON wherever `pack` makes one of it, which begins with its tag."""

    word: Type[Any]
    pack: Callable[[Any], Optional[bytes]]
    """None: it says more than that form can."""
    parse: Callable[[bytes], Any]
    """Raises ValueError."""


class Vocabulary(Generic[T]):
    """What one side of a connection says. `words`: the types by their operation; `arrays`: NamedTuples inside them that
    travel as arrays, not as objects; `blobs`: words of which a field travels as the blob, if not `blob` as it is;
    `packed`: words with a form of their own, by its tag (one byte).

    A type may check more than its fields' types in `check()`, which raises ValueError, and a type of a field may bring
    its own form with `to_json()` and a static `of_json(value)`.
    """

    def __init__(
        self,
        words: Mapping[str, Type[Any]],
        arrays: Tuple[Type[Any], ...] = (),
        blobs: Optional[Mapping[Type[Any], Blob]] = None,
        packed: Optional[Mapping[bytes, Packed]] = None,
    ) -> None:
        self.words = dict(words)
        self._ops = {word: op for op, word in words.items()}
        self._arrays = arrays
        self._blobs = dict(blobs or {})
        self._packed = dict(packed or {})
        self._packers = {form.word: form.pack for form in self._packed.values()}
        self._strict: Set[Type[Any]] = set()
        """Those with a `check()`."""
        self._shapes: Dict[Type[Any], List[_Field]] = {}

    def frame(self, word: T) -> wire.Frame:
        """The message and the blob."""
        pack = self._packers.get(type(word))
        packed = None if pack is None else pack(word)
        if packed is not None:
            return {}, packed
        message = {"op": self._ops[type(word)], **self._told(word)}
        blob: bytes = message.pop("blob", b"")
        return message, blob

    def encode(self, word: T) -> bytes:
        """The bytes of the frame. Raises ValueError for one that is too large."""
        return wire.encode(*self.frame(word))

    def parse(self, message: wire.Message, blob: bytes = b"") -> T:
        """What a frame says. Raises BadMessage."""
        form = None if message else self._packed.get(blob[:1])
        if form is not None:
            packed: T = form.parse(blob)
            return packed
        op = message.get("op")
        word = self.words.get(op) if isinstance(op, str) else None
        if word is None:
            raise BadMessage(f"unknown message {_shown(op)}")
        try:
            found: T = self._checked(word, {**message, "blob": blob})
        except (ValueError, RecursionError) as error:
            raise BadMessage(f"the message {op!r} makes no sense: {error}"[:TEXT_LIMIT]) from None
        return found

    def _told(self, word: Any) -> Dict[str, Any]:
        told: Dict[str, Any] = {}
        for at, field in enumerate(self._shape(type(word))):
            value = word[at]
            if field.required or value != field.default:
                told[field.name] = value if field.tell is None else field.tell(value)
        return told

    def _checked(self, word: Type[Any], found: Mapping[str, Any]) -> Any:
        values: List[Any] = []
        name = ""
        try:
            for name, check, _, required, default in self._shapes.get(word) or self._shape(word):
                value = found.get(name, _MISSING)
                if value is not _MISSING:
                    value = check(value)
                elif required:
                    raise ValueError("it is missing")
                else:
                    value = default
                values.append(value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        made = word(*values)
        if word in self._strict:
            made.check()
        return made

    def _shape(self, word: Type[Any]) -> List[_Field]:
        if word not in self._shapes:
            if hasattr(word, "check"):
                self._strict.add(word)
            self._shapes[word] = [self._field(word, name, hint) for name, hint in get_type_hints(word).items()]
        return self._shapes[word]

    def _field(self, word: Type[Any], name: str, hint: Any) -> _Field:
        blob = self._blobs.get(word)
        if blob is not None and blob.field == name:
            return _Field("blob", blob.parse, blob.encode, True, None)
        defaults = word._field_defaults
        return _Field(name, *self._of(hint), name not in defaults, defaults.get(name))

    def _of(self, hint: Any) -> Tuple[_Change, Optional[_Change]]:
        """How a value of this type is checked, and how it is told."""
        origin, inner = get_origin(hint), get_args(hint)
        if hint in _PLAIN:
            return _PLAIN[hint], None
        if origin is Union:
            check, tell = self._of(inner[0])
            return _or_none(check), None if tell is None else _or_none(tell)
        if origin is tuple:
            return self._of_tuple(inner)
        if origin is AnyMapping:
            return self._of_mapping(*inner)
        if hasattr(hint, "of_json"):
            return hint.of_json, hint.to_json
        if hint in self._arrays:
            return self._of_array(hint)
        return lambda value: self._checked(hint, _object(value)), self._told

    def _of_tuple(self, inner: Tuple[Any, ...]) -> Tuple[_Change, Optional[_Change]]:
        if inner[-1] is not Ellipsis:
            return _row_of(inner, [self._of(each)[0] for each in inner]), None
        if inner[0] in (int, str):
            return _run_of(inner[0], _PLAIN[inner[0]]), None
        check, tell = self._of(inner[0])
        told: Optional[_Change] = None if tell is None else lambda value: [tell(each) for each in value]
        return lambda value: tuple([check(each) for each in _array(value)]), told

    def _of_mapping(self, key: Any, inner: Any) -> Tuple[_Change, Optional[_Change]]:
        if inner is Any:
            return _object, None
        name = _number if key is int else _text
        check, tell = self._of(inner)
        told: Optional[_Change] = None if tell is None else lambda value: {n: tell(v) for n, v in value.items()}
        return lambda value: {name(n): check(v) for n, v in _object(value).items()}, told

    def _of_array(self, word: Type[Any]) -> Tuple[_Change, Optional[_Change]]:
        checks = [field.check for field in self._shape(word)]

        def check(value: Any) -> Any:
            made = word(*_each(checks, value))
            if word in self._strict:
                made.check()
            return made

        return check, None


def _row_of(kinds: Tuple[Any, ...], checks: List[_Change]) -> _Change:
    """An array of given length. There are thousands in one message: what is as it should be is seen at once."""
    numbers = [at for at, kind in enumerate(kinds) if kind not in (str, bool)]

    def check(value: Any) -> Any:
        if type(value) is list and tuple(map(type, value)) == kinds:
            for number in numbers:
                checks[number](value[number])
            return tuple(value)
        return tuple(_each(checks, value))

    return check


def _run_of(kind: Type[Any], check: _Change) -> _Change:
    """Of one plain kind, in the same way."""

    def all_of(value: Any) -> Any:
        if type(value) is not list or set(map(type, value)) != {kind}:
            return tuple([check(each) for each in _array(value)])
        if kind is int:
            check(min(value))
            check(max(value))
        return tuple(value)

    return all_of


def _each(checks: Sequence[_Change], value: Any) -> List[Any]:
    return [checks[at](inner) for at, inner in enumerate(_array(value, len(checks)))]


def _or_none(change: _Change) -> _Change:
    return lambda value: None if value is None else change(value)


def _shown(value: object) -> str:
    return reprlib.repr(value)[:80]


def _whole(value: Any) -> int:
    if type(value) is not int or not -WHOLE_LIMIT < value < WHOLE_LIMIT:
        raise ValueError(f"expected a whole number, found {_shown(value)}")
    return value


def _finite(value: Any) -> float:
    if type(value) is int:
        return float(_whole(value))
    if type(value) is not float or not math.isfinite(value):
        raise ValueError(f"expected a number, found {_shown(value)}")
    return value


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError(f"expected true or false, found {_shown(value)}")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"expected a text, found {_shown(value)}")
    return value


def _bytes(value: Any) -> bytes:
    if type(value) is not bytes:
        raise ValueError("expected a blob")
    return value


def _object(value: Any) -> Dict[str, Any]:
    if type(value) is not dict:
        raise ValueError(f"expected an object, found {_shown(value)}")
    return value


def _array(value: Any, length: Optional[int] = None) -> Sequence[Any]:
    if type(value) is not list or (length is not None and len(value) != length):
        many = "" if length is None else f" of {length}"
        raise ValueError(f"expected an array{many}, found {_shown(value)}")
    return value


def _number(name: str) -> int:
    """Of a rank, as the name of a field."""
    if not name.isdecimal() or not name.isascii() or len(name) > 12:
        raise ValueError(f"expected numbers as names, found {_shown(name)}")
    return int(name)


_PLAIN: Dict[Any, _Change] = {
    int: _whole,
    float: _finite,
    bool: _flag,
    str: _text,
    bytes: _bytes,
    Any: lambda value: value,
}

"""Messages as they come out at the other end of a connection."""

from __future__ import annotations

from typing import TypeVar

from trainjob_api import wire
from trainjob_api.typed import Vocabulary

T = TypeVar("T")


def as_sent(vocabulary: Vocabulary[T], word: T) -> wire.Frame:
    """The frame that a receiver decodes."""
    (frame,) = wire.Decoder().feed(vocabulary.encode(word))
    return frame


def came(vocabulary: Vocabulary[T], word: T) -> T:
    """The message that a receiver makes of it."""
    return vocabulary.parse(*as_sent(vocabulary, word))

"""A list as the API server sends it, without what nobody reads: `managedFields`, about half of each object.

Used by `kubeapi.py` before a list is parsed, since parsing holds the event loop. The API has no way to leave them out.
"""

from __future__ import annotations

_BEGIN = b'"managedFields":['
_EMPTY = b'"managedFields":[]'


def without_managed_fields(content: bytes) -> bytes:
    """The same JSON document, with each `managedFields` an empty array. One that is written otherwise than API servers
    do it (compactly, as an array without arrays in it) is left as it is.

    A quotation mark within a JSON string has a backslash before it, so what is looked for can begin no place within one
    but where it ends: there no name can follow.
    """
    parts: list[bytes] = []
    done, found = 0, content.find(_BEGIN)
    while found >= 0:
        begun = found + len(_BEGIN)
        end = _end_of_array(content, begun) if content[found - 1 : found] in (b"{", b",") else -1
        if end >= 0:
            parts += (content[done:found], _EMPTY)
            done = begun = end
        found = content.find(_BEGIN, begun)
    return b"".join((*parts, content[done:])) if parts else content


def _end_of_array(content: bytes, begun: int) -> int:
    """The place behind the bracket that closes the array; -1: not told by counting quotation marks alone."""
    end = begun
    while (end := content.find(b"]", end)) >= 0:
        inside = content[begun:end]
        if b"\\\\" in inside:
            return -1
        marks = inside.count(b'"') - inside.count(b'\\"')
        end += 1
        if marks % 2 == 0:
            # Brackets within strings are rare: one that opens here is taken for an array.
            return -1 if b"[" in inside else end
    return -1

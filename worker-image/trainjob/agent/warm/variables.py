"""Whether a script's text gives itself variables that torch, or what it computes with, reads once: when it is imported.
Pure; asked by `choice`.

A text is not run, so whatever may set one is taken for it: what is surely a reading, or surely another variable, is
passed over, and of the rest nothing is believed.
"""

from __future__ import annotations

import re
from typing import Iterable, Optional, Sequence

_PREFIXES = (
    b"OMP|GOMP|KMP|MKL|OPENBLAS|BLIS|VECLIB|NUMEXPR|NPY|NUMPY|DNNL|ONEDNN|ATEN|TORCH|TORCHDYNAMO|TORCHINDUCTOR|PYTORCH"
    b"|AOT|AOTINDUCTOR|INDUCTOR|PT2|FX|KINETO|TRITON|SYMPY|TQDM"
)
_SUCH = rb"(?:" + _PREFIXES + rb")_\w+"
_QUOTED = rb"""[bru]*["'](""" + _SUCH + rb""")["']"""
_ENVIRON = rb"\benvironb?\s*"
_IS = rb"\s*[+|]?=(?!=)"
_INSIDE = rb"\[(?:[^\[\]\n]|\[[^\[\]\n]*\])*\]"
_CALL = rb"\s*\(\s*"
_PUT = rb"\b(?:put|set|unset)env" + _CALL
_SETS_SUCH = re.compile(
    rb"|".join(
        (
            _ENVIRON + rb"\[\s*" + _QUOTED + rb"\s*\]" + _IS,
            _ENVIRON + rb"\.\s*(?:setdefault|pop)" + _CALL + _QUOTED,
            _ENVIRON + rb"\.\s*update\s*\([^)]*?" + _QUOTED,
            _ENVIRON + rb"\.\s*update\s*\((?:[^)]*?[\s,(])??(" + _SUCH + rb")" + _IS,
            _PUT + _QUOTED,
        )
    )
)
_NAMES_SUCH = re.compile(
    rb"""["']((?:"""
    + _PREFIXES
    + rb""")_\w*)|\b(?:update|dict)\s*\([^()]*?\b("""
    + _SUCH
    + rb")"
    + _IS
    + rb"""|\b(\w*_NUM_THREADS)["']"""
)
"""In quotes, as a keyword, or put together: `f"{library}_NUM_THREADS"`."""
_DELETES = re.compile(rb"\bdel\s+(?:\w+\s*\.\s*)?(" + _ENVIRON + _INSIDE + rb")")
_READS = re.compile(
    _ENVIRON
    + rb"(?:\.\s*(?:get|copy|items|keys|values|__contains__)\b|"
    + _INSIDE
    + rb"(?!"
    + _IS
    + rb"|\s*,[^\n]*[^=!<>\n]=(?!=)))"
    + rb"|\bin\s+(?:os\s*\.\s*)?environb?\b|(?:\*\*|(?<!\.)\bdict\s*\()\s*(?:os\s*\.\s*)?environb?\b(?!\s*[.\[])"
    # Under its own name it is seen where it is used.
    + rb"|^[ \t]*from[ \t]+os[ \t]+import[ \t]+\(?(?:[\w \t,]*,\s*)?environb?\b(?!\s+as\b)",
    re.M,
)
_LITERAL = rb"""[bru]*(?:"[^"\n]*"|'[^'\n]*')\s*"""
_SETS_ONE = re.compile(
    rb"|".join(
        (
            _ENVIRON + rb"\[\s*" + _LITERAL + rb"\]" + _IS,
            _ENVIRON + rb"\.\s*(?:setdefault|pop)" + _CALL + _LITERAL + rb"[,)]",
            _ENVIRON + rb"\.\s*update" + _CALL + rb"(?:\{\s*" + _LITERAL + rb":(?:(?!\*\*)[^}])*\}\s*\)|\w+\s*=(?!=))",
            _PUT + _LITERAL + rb"[,)]",
        )
    )
)
"""Its name stands there."""
_SETS_ANY = re.compile(
    _ENVIRON
    + rb"(?:"
    + _INSIDE
    + _IS
    + rb"|\.\s*(?:setdefault|pop|update)\b|[+|]=)|\b(?:put|set|unset)env\b|\bload_dotenv\b"
)
_HAS_IT = re.compile(rb"\benvironb?\b")


def sets_such(texts: Sequence[bytes]) -> Optional[str]:
    """The name of one that some text sets."""
    return _name(_SETS_SUCH, map(_told, texts))


def may_set_such(texts: Sequence[bytes]) -> Optional[str]:
    """The name of one that some text has, where some text does with the environment what does not say its names."""
    return _name(_NAMES_SUCH, texts) if any(_HAS_IT.search(_unclear(text)) for text in texts) else None


def sets_unknown(texts: Sequence[bytes]) -> bool:
    """Whether variables are set whose names come from elsewhere."""
    return any(_SETS_ANY.search(_unclear(text)) for text in texts)


def sets_any(texts: Sequence[bytes]) -> bool:
    """Whether any variable is set, or may be."""
    return any(_SETS_ANY.search(_told(text)) or _HAS_IT.search(_unclear(text)) for text in texts)


def _name(pattern: re.Pattern[bytes], texts: Iterable[bytes]) -> Optional[str]:
    found = next((match for match in map(pattern.search, texts) if match is not None), None)
    return None if found is None else b"".join(filter(None, found.groups())).decode()


def _told(text: bytes) -> bytes:
    """`del environ[...]` as what it is, a change."""
    return _DELETES.sub(rb"\1 = None", text)


def _unclear(text: bytes) -> bytes:
    """Without what surely reads, and what surely sets a variable whose name stands there."""
    return _SETS_ONE.sub(b"", _READS.sub(b"", _told(text)))

"""What a training function returned, on its way from rank 0 to the launcher through storage that others may write to.

Reading it back runs code (it is a pickle), so the launcher makes a key for each job, the ranks get it with the function
(on the cluster, not in storage), and what does not carry the key's HMAC is not looked at. Both sides call this; it
pickles nothing itself.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

_MARK = b"trainjob-returned-1 "
_DIGEST = hashlib.sha256
_HEAD_BYTES = len(_MARK) + 2 * _DIGEST().digest_size + 1


def new_key() -> str:
    """One for each job."""
    return secrets.token_hex(32)


def sealed(key: str, body: bytes) -> bytes:
    """As it is stored."""
    return _MARK + _mac(key, body) + b"\n" + body


def opened(key: str, stored: bytes) -> bytes | None:
    """What `sealed` was given with this key; None: it is somebody else's, or was changed."""
    head, body = stored[:_HEAD_BYTES], stored[_HEAD_BYTES:]
    return body if hmac.compare_digest(head, _MARK + _mac(key, body) + b"\n") else None


def _mac(key: str, body: bytes) -> bytes:
    return hmac.new(key.encode(), body, _DIGEST).hexdigest().encode()

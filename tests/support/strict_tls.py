"""TLS as strict as it is by itself from Python 3.13 on, on any Python."""

from __future__ import annotations

import ssl
from typing import Any

import pytest


def as_from_python_3_13(monkeypatch: pytest.MonkeyPatch) -> None:
    """For contexts that are made by default, of the standard library and of urllib3."""
    plain = ssl.create_default_context

    def strict(*words: Any, **named: Any) -> ssl.SSLContext:
        context = plain(*words, **named)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)
    urllib3 = pytest.importorskip("urllib3")
    made = urllib3.util.ssl_.create_urllib3_context

    def strict_of_urllib3(*words: Any, **named: Any) -> ssl.SSLContext:
        context: ssl.SSLContext = made(*words, **named)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    for module in (urllib3.util.ssl_, urllib3.connection):
        monkeypatch.setattr(module, "create_urllib3_context", strict_of_urllib3)

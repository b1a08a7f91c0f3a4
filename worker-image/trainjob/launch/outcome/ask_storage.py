"""A question to the storage of a job that is over, for a person who waits: answered in seconds, or not at all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from trainjob.checkpoint.stores.store import Store

T = TypeVar("T")
ASK_S = 4.0
"""How long it is asked."""


def ask(storage: str, question: Callable[[Store], T]) -> tuple[T | None, str]:
    """(the answer, what kept it from being told). A bucket that is away would be tried for a minute: it is asked in a
    thread that is left behind.
    """
    from trainjob.checkpoint.choice import catalogue
    from trainjob.checkpoint.errors import StoreError

    answer: list[tuple[T | None, str]] = []

    def put() -> None:
        try:
            answer.append((question(catalogue.open_store(storage, ASK_S)), ""))
        except StoreError as error:
            answer.append((None, str(error)))
        except Exception as error:  # of a library, say: who waits is to know it at once
            answer.append((None, f"{type(error).__name__}: {error}"))

    asking = threading.Thread(target=put, daemon=True)
    asking.start()
    asking.join(ASK_S)
    return answer[0] if answer else (None, "it does not answer")

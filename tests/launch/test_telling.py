"""What the companion of a loop in somebody's process says, while that process stands still."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

from support.patience import HANG_S
from trainjob.launch.in_process.telling import Telling

PIPE_SIZE = 1 << 20
"""More than a pipe holds."""


def test_a_reader_who_stands_still_holds_nobody_up_and_finds_the_newest_status_and_all_other_words() -> None:
    reads, writes = os.pipe()
    telling = Telling(writes)
    telling.tell({"note": "n" * PIPE_SIZE})
    for n in range(1000):
        telling.tell({"status": {"n": n, "pad": "x" * 1000}})
        if n == 500:
            telling.tell({"line": "in the midst"})
    telling.tell({"job": {}})
    closing = threading.Thread(target=telling.close, daemon=True)
    closing.start()
    with os.fdopen(reads, "rb") as stream:
        lines = iter(stream.readline, b"")
        words = []
        while not words or "job" not in words[-1]:
            line = next(lines)
            words += [json.loads(line)] if line.strip() else []
    closing.join(HANG_S)
    os.close(writes)
    assert not closing.is_alive()
    assert [next(iter(word)) for word in words] == ["note", "line", "status", "job"]
    assert words[2]["status"]["n"] == 999


def test_a_reader_who_has_gone_is_told_nothing() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    telling = Telling(writes)
    telling.tell({"note": "n"})
    telling.close()
    telling.tell({"note": "n"})
    telling.close()
    os.close(writes)


STRAY = """
import os, sys
print("a banner", end="", flush=True)
from trainjob.launch.in_process.telling import Telling, own_output
telling = Telling(own_output())
print("of a library")
os.write(1, b"of a child")
telling.tell({"job": 1})
telling.close()
"""


def test_what_others_print_does_not_come_between_its_words() -> None:
    found = subprocess.run([sys.executable, "-c", STRAY], capture_output=True, timeout=HANG_S, check=True)
    assert found.stdout == b'a banner\n{"job": 1}\n'
    assert b"of a library" in found.stderr and b"of a child" in found.stderr

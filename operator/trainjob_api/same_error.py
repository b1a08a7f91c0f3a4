"""Whether two errors are the same one: what differs by process is left out before they are compared.

The one place where errors are compared: by the control loop (was the attempt before ended by this too?) and by the
displays (was this traceback shown already?). Pure; standard library only, Python 3.9.
"""

from __future__ import annotations

import re

from trainjob_api.contract import ENDED_LIMIT

_BY_PROCESS = (
    # <Net object at 0x7f3a...>, "Current thread 0x..."
    (re.compile(r"\b0x[0-9a-fA-F]+"), "0x"),
    # worker (pid 28074), worker (pid(s) 28074, 28075), process 412, thread 140312
    (re.compile(r"\b(pid\(s\)|pids?|tid|process|thread)(\W{0,3})\d+(?:, \d+)*", re.IGNORECASE), r"\1\2N"),
    (re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"), "UUID"),
    # What tempfile, multiprocessing and torch name: tmpk3_x9a2b, /tmp/run-ab12cd34, pymp-w1l0yh4c, torch_412_88_0
    (re.compile(r"\btmp[a-z0-9_]{8}(?!\w)"), "tmpNAME"),
    (re.compile(r"(?<=/tmp/)([\w.-]*[-.])?[a-z0-9_]{8}(?!\w)"), r"\1NAME"),
    (re.compile(r"\b(pymp|listener|trainjob(?:-[a-z]+)*)-[a-z0-9_]{8}(?!\w)"), r"\1-NAME"),
    (re.compile(r"\btorch_\d+_\d+_\d+"), "torch_N"),
    # 127.0.0.1:43121, [::1]:43121, localhost:43121, port 43121
    (re.compile(r"(\d+\.\d+\.\d+\.\d+|\]|\blocalhost):\d{2,5}\b"), r"\1:PORT"),
    (re.compile(r"\b(port\W{1,3})\d{2,5}\b", re.IGNORECASE), r"\1PORT"),
)


def by_any_process(text: str) -> str:
    """The text of an error without pids, addresses, ports and temporary names."""
    for pattern, instead in _BY_PROCESS:
        text = pattern.sub(instead, text)
    return text


_PLACE = re.compile(r"^(rank \d+) on [a-z0-9][a-z0-9.-]*(?= )")
"""`rank 1 on mine-1`: a worker that takes the place of that one is mine-2, with the same rank."""
_AT_THE_CUT = 32
"""Characters by which cut sentences may be cut elsewhere: their pids, ports and places differ in length."""


def same_sentence(one: str, other: str) -> bool:
    """Whether two causes, as they are told in a sentence each, are the same one. A history keeps the begin of each."""
    (first, *_), (second, *_) = [_PLACE.sub(r"\1", by_any_process(each.strip())).split("\n") for each in (one, other)]
    if first == second:
        return True
    if max(len(one), len(other)) < ENDED_LIMIT or min(len(one), len(other)) < ENDED_LIMIT:
        return False
    kept = min(len(first), len(second)) - _AT_THE_CUT
    return first[:kept] == second[:kept]


def same(one: str, other: str) -> bool:
    """Whether two tracebacks are of the same error, at the same place. Each may have lost its beginning to a limit."""
    short, long = sorted((by_any_process(one.rstrip()), by_any_process(other.rstrip())), key=len)
    if short == long:
        return True
    # A limit in characters cuts elsewhere where pids differ in length: the first line that is left is none.
    _, _, whole = short.partition("\n")
    begins = short.startswith("Traceback (most recent call last):")
    return bool(whole) and not begins and long.endswith("\n" + whole)

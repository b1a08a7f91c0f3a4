"""What a rank that crashed in native code wrote, and what is told of it."""

from __future__ import annotations

import pytest

from trainjob.agent.processes import crash

THROWN = """epoch 0
terminate called after throwing an instance of 'gloo::EnforceNotMet'
  what():  [enforce fail at /x/gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 12 vs 4 . Is there a \
distributed collective mismatch in your code?
"""
ABORTED = "Fatal Python error: Aborted\n\n"
READER = """Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/socket.py", line 294 in accept

"""
MAIN = """Thread 0x00007f02 (most recent call first):
  File "/x/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/w/base.py", line 20 in <module>
  File "/x/trainjob/session/rank.py", line 87 in _run
  File "<frozen runpy>", line 198 in _run_module_as_main

Extension modules: numpy.core (total: 1)
"""
OWN = [
    "Traceback (most recent call last):",
    '  File "/w/base.py", line 20, in <module>',
    '  File "/x/site-packages/torch/distributed/distributed_c10d.py", line 3252, in all_reduce',
]


@pytest.mark.parametrize(
    "stack",
    [
        READER + MAIN,
        "Current thread 0x00007f00 (most recent call first):\n  <no Python frame>\n\n" + READER + MAIN,
        READER + MAIN.replace("Thread", "Current thread", 1),
    ],
    ids=["no current thread", "a current thread without frames", "the main thread"],
)
def test_what_a_library_threw_is_told_and_where_the_rank_waited_for_it(stack: str) -> None:
    found = crash.of(THROWN + ABORTED + stack)
    assert found is not None
    said = "op.preamble.length <= op.nbytes. 12 vs 4. Is there a distributed collective mismatch in your code?"
    assert (found["type"], found["message"]) == ("gloo::EnforceNotMet", said)
    assert found["traceback"].splitlines() == [*OWN, f"gloo::EnforceNotMet: {said}"]


def test_a_crash_of_another_thread_of_python_is_told_where_that_one_stood() -> None:
    found = crash.of("Fatal Python error: Segmentation fault\n\nCurrent " + READER.replace("T", "t", 1) + MAIN)
    assert found is not None and (found["type"], found["message"]) == (crash.TYPE, "Segmentation fault")
    assert 'socket.py", line 294, in accept' in found["traceback"] and "base.py" not in found["traceback"]


def test_what_was_thrown_in_an_earlier_crash_is_not_told_of_this_one() -> None:
    found = crash.of(THROWN + ABORTED + MAIN + "Fatal Python error: Segmentation fault\n\n" + READER + MAIN)
    assert found is not None and found["message"] == "Segmentation fault"

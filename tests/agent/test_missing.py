"""What is advised where ranks wait for one that waits for them."""

from __future__ import annotations

from trainjob.agent.barriers.missing import advice, told

BACKWARD = 'File "/venv/site-packages/torch/autograd/graph.py", line 1 in _engine_run_backward'
GROUP = 'File "/venv/site-packages/torch/distributed/distributed_c10d.py", line 5 in barrier\n'
LIGHTNING = 'File "/venv/{}/trainer/trainer.py", line 1465 in save_checkpoint'


def test_a_rank_that_saves_alone_is_told_from_one_with_fewer_batches() -> None:
    assert advice(['File "/work/train.py", line 3 in loop'], "report()", (1,)) == []
    assert "as many batches" in advice([BACKWARD], "report()", (1,))[0]
    for package in ("pytorch_lightning", "lightning/pytorch"):
        said = advice([GROUP + LIGHTNING.format(package)], "report()", (0,))
        assert len(said) == 1 and "call it on every rank" in said[0]


def test_where_rank_0_alone_waits_it_is_asked_whether_it_alone_calls() -> None:
    asked, batches = advice([BACKWARD], "report()", (0,))
    assert asked == "report() is called by all ranks: does it stand under `if rank == 0:`, or has rank 0 fewer batches?"
    assert "as many batches" in batches


def test_what_is_told_of_a_rank_begins_where_its_main_thread_is_and_leaves_our_own_threads_out() -> None:
    ours = 'Thread 0x01 (most recent call first):\n  File "/site-packages/trainjob/session/flight_recorder.py", line 9 in _answer'
    loader = 'Thread 0x02 (most recent call first):\n  File "/work/fit.py", line 7 in fetch'
    main = 'Current thread 0x03 (most recent call first):\n  File "/work/fit.py", line 73 in main'
    assert told(1, "\n\n".join([ours, loader, main])) == f"rank 1 is in fit.py:73 main\n{main}\n{loader}"
    assert told(1, "is ending") == "rank 1: is ending"
    cut = f"{main}\n..."
    assert told(1, cut) == f"rank 1: {cut}", "the main thread may not be among them"

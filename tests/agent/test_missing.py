"""What is advised where ranks wait for one that waits for them."""

from __future__ import annotations

from trainjob.agent.barriers.missing import advice

BACKWARD = 'File "/venv/site-packages/torch/autograd/graph.py", line 1 in _engine_run_backward'
GROUP = 'File "/venv/site-packages/torch/distributed/distributed_c10d.py", line 5 in barrier\n'
LIGHTNING = 'File "/venv/{}/trainer/trainer.py", line 1465 in save_checkpoint'


def test_a_rank_that_saves_alone_is_told_from_one_with_fewer_batches() -> None:
    assert advice(['File "/work/train.py", line 3 in loop']) == []
    assert "as many batches" in advice([BACKWARD])[0]
    for package in ("pytorch_lightning", "lightning/pytorch"):
        said = advice([GROUP + LIGHTNING.format(package)])
        assert len(said) == 1 and "call it on every rank" in said[0]

"""What the parts of an agent share, without an agent: for its objects alone. Used by tests and by `benchmarks.agents`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from support.background import no_fault
from trainjob.agent.storing.code import JobCode
from trainjob.agent.warm.stores import Stores


def bare_site(storage: Any, saving: Any, /, **spec: Any) -> Any:
    """A `Site` that says nothing, on a storage path. `spec`: what differs in `spec.checkpoint`."""
    usual = {
        "storage": "/store",
        "keep": None,
        "score_attribute": None,
        "score_order": "max",
        "strict": False,
        "on_upload_failure": "Continue",
        "resume_from": "auto",
        "rendezvous_port": 29500,
    }
    config = SimpleNamespace(
        spec=SimpleNamespace(**{**usual, **spec}),
        command=["python", "train.py"],
        host="127.0.0.1",
        job_uid="u",
        barrier_warn_s=3600.0,
        any_master_port=True,
    )
    console: Any = SimpleNamespace(say=lambda text: None)
    return SimpleNamespace(
        config=config,
        console=console,
        code=JobCode(None, storage, console),
        storage=storage,
        saving=saving,
        changed=lambda at_once: None,
        progressed=lambda: None,
        warn=lambda text: None,
        uri=lambda id_: f"/store/checkpoints/{id_}",
        on_fault=no_fault,
        starter=SimpleNamespace(stores=Stores(_nobody, lambda why: None), warm_up=lambda: None),
        tracking=SimpleNamespace(begin=lambda run, attempt, words: None, leave=lambda: None),
    )


async def _nobody(module: str) -> None:
    """No warm parent."""

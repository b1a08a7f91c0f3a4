"""Each field of the spec is edited at each moment of a job's life: it ends as storage says, its last edit is answered,
and every promise holds after each change.

Two lives: one with a failure, a lost pod and a suspension, and one whose workers all vanish in the moment in which
training completes, so that a worker has to look. A moment is a question to the cluster or the answer to it; each field
is edited at two moments of each life, drawn from a seed. TRAINJOB_SIM_EVERY=1 tries all of them.
"""

from __future__ import annotations

import asyncio
import functools
import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from support.misfortunes import EDITS, accepted
from support.puppets import Pace
from support.simulation import NAMESPACE, Simulation, manifest
from support.virtual_time import run_virtual
from trainjob_api.v1alpha1 import TrainJobSpec
from trainjob_operator.memory import Call, Moment

EVERY = os.environ.get("TRAINJOB_SIM_EVERY")
TRIES = 2
ELSEWHERE = {
    "template": "it can be changed only while the job is suspended: test_struck_anywhere",
    "managedBy": "it can never be changed: tests/kube",
    "ttlSecondsAfterFinished": "the job is gone then: tests/core/test_lifecycle",
}


@pytest.fixture(autouse=True)
def quiet_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")


def after(sim: Simulation, delay_s: float, then: Callable[[], Any]) -> None:
    async def wait() -> None:
        await asyncio.sleep(delay_s)
        then()

    sim.world.spawn(wait())


def edit(sim: Simulation, field: str, rng: random.Random) -> None:
    """An edit that is taken, and that changes something."""
    before = sim.job().metadata.generation
    for _ in range(100):
        patch = {field: EDITS[field](rng)}
        if accepted(sim, patch):
            sim.cluster.update_job_spec(NAMESPACE, "digits", patch)
        if sim.job().metadata.generation > before:
            return
    raise AssertionError(f"no edit of {field} is taken: {patch}")


def suspend(sim: Simulation, wish: bool) -> None:
    sim.cluster.update_job_spec(NAMESPACE, "digits", {"suspend": wish})


def eventful(sim: Simulation) -> dict[str, Any]:
    after(sim, 6.0, lambda: [sim.world.fail_rank(agent) for agent in list(sim.world.agents.values())[:1]])
    after(sim, 11.0, lambda: [sim.world.lose_pod(agent) for agent in list(sim.world.agents.values())[:1]])
    after(sim, 16.0, lambda: suspend(sim, True))
    after(sim, 24.0, lambda: suspend(sim, False))
    return {"workers": 3, "failurePolicy": {"maxFailures": 8}}


def vanishing(sim: Simulation) -> dict[str, Any]:
    async def watch() -> None:
        storage = sim.world.training("digits").storage
        await sim.until(lambda: storage.ended is not None, "training completes", within_s=10_000.0, every_s=0.01)
        for agent in list(sim.world.agents.values()):
            sim.world.lose_pod(agent)

    sim.world.last_words = False
    sim.world.spawn(watch())
    return {"workers": 2, "failurePolicy": {"maxFailures": 0}}


LIVES = {"eventful": eventful, "vanishing": vanishing}


async def one_run(life: str, field: str | None, at: int) -> int:
    """How many moments it had."""
    async with Simulation(5, pace=Pace(report=0.7)) as sim:
        moments = 0

        async def count(call: Call, moment: Moment) -> None:
            nonlocal moments
            moments += 1
            if moments - 1 == at and field is not None:
                after(sim, 0.0, functools.partial(edit, sim, field, random.Random(at)))

        sim.on_call = count
        spec = LIVES[life](sim)
        sim.cluster.create_job(manifest(checkpoint={"storage": "/checkpoints"}, **spec))
        sim.world.training("digits").length = 20
        if field == "suspend":
            after(sim, 100.0, lambda: suspend(sim, False))
        job = await sim.until_finished(within_s=1500.0)
        truth = sim.world.training("digits").completed
        assert job.status.holds("Complete") == truth, (truth, job.status.condition("Failed"))
        await asyncio.sleep(100.0)
        sim.checker.raise_failure()
        job = sim.job()
        assert job.status.observed_generation == job.metadata.generation
        left = [
            pod["metadata"]["name"] for pod in sim.cluster.pods() if pod["status"]["phase"] in ("Pending", "Running")
        ]
        assert not left or job.spec.pod_cleanup == "None", f"still there after the end: {left}"
        return moments


@functools.cache
def moments(life: str) -> int:
    return run_virtual(one_run(life, None, -1))


def test_no_field_is_left_out() -> None:
    fields = {field.alias or name for name, field in TrainJobSpec.model_fields.items()}
    assert set(EDITS) | set(ELSEWHERE) == fields and not set(EDITS) & set(ELSEWHERE)


@pytest.mark.parametrize("life", LIVES)
@pytest.mark.parametrize("field", sorted(EDITS))
def test_it_ends_as_storage_says_whatever_is_edited_whenever(field: str, life: str) -> None:
    every = range(moments(life))
    for at in every if EVERY else random.Random(f"{life} {field}").sample(every, TRIES):
        try:
            run_virtual(one_run(life, field, at))
        except Exception as error:
            raise AssertionError(f"{field} at moment {at}: {error}") from error

"""A job under random blows, run by run: each seed is a plan, a plan is run in virtual time, and one that fails is made
smaller until no blow can be left out of it.

`make sim SEEDS=n` runs the plans of n seeds on all cores and prints how many faults a CPU minute that were; each that
fails is told as its smallest plan with a timeline.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from support.misfortunes import BLOWS, CROWDED, heal
from support.puppets import Training
from support.simulation import FlakyCluster, RandomFaults, Simulation, manifest
from support.virtual_time import run_virtual
from trainjob_api import contract
from trainjob_api.v1alpha1 import TrainJob

FAULTY_S, CROWDED_S = 60.0, 240.0
"""So long things break, and where two jobs share the room: nobody makes any within half a minute."""
PATIENCE_S, CROWDED_PATIENCE_S = 900.0, 1800.0
"""So long after the last fault the job may take to end; where two share the room, one trains after the other."""
UNHEARD_S = 5.0
"""So long before the write that fails a job a pod may end unheard: a list and the write take their time."""
MOST_ECHOES = 0.05
"""Each is an answer without news to who waits for one: more of them would look like two who talk for ever."""
BATCH = 50
"""Seeds that a process runs before it says how it went."""


@dataclass(frozen=True)
class Struck:
    """One blow."""

    at: float
    blow: str
    seed: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything about a run that chance decides beforehand."""

    seed: int
    spec: dict[str, Any]
    length: int
    api_errors: float
    late_requests: float
    lost_messages: float
    notice_s: float
    capacity: int | None
    crowded: bool
    """A second job comes, and there is no room for both."""
    blows: tuple[Struck, ...]


@dataclass
class Ran:
    """What became of a plan."""

    plan: Plan
    faults: int = 0
    failure: str | None = None
    timeline: list[str] = field(default_factory=list)


def plan_of(seed: int) -> Plan:
    """The plan of a seed; the same for ever, for a state of this file."""
    rng = random.Random(seed)
    spec: dict[str, Any] = {
        "workers": rng.randint(1, 4),
        "processesPerWorker": rng.choice([1, 1, 2]),
        "checkpoint": {"storage": "/checkpoints"},
        "failurePolicy": {"maxFailures": rng.choice([0, 1, 3, -1]), "maxPreemptions": rng.choice([-1, -1, 2])},
    }
    deadline = rng.choice([None] * 8 + [("activeDeadlineSeconds", 40), ("startupDeadlineSeconds", 30)])
    if deadline is not None:
        spec[deadline[0]] = deadline[1]
    sizes = random.Random(f"elastic {seed}")
    if sizes.random() < 0.4:
        least = sizes.randint(1, spec["workers"])
        spec["elastic"] = {
            "minWorkers": least,
            "maxWorkers": 4,
            "shrinkAfterSeconds": sizes.choice([0, 5, 30]),
            "growAfterSeconds": sizes.choice([0, 10, 60]),
        }
        allowed = random.Random(f"allowed {seed}")
        if allowed.random() < 0.3:
            between = [size for size in range(least + 1, spec["workers"]) if allowed.random() < 0.5]
            spec["elastic"]["allowedSizes"] = sorted({least, *between, spec["workers"]})
    if "elastic" not in spec and sizes.random() < 0.4:
        spec |= {"runtime": {"agent": "Disabled"}, "processesPerWorker": 1}
    spares = random.Random(f"spares {seed}").choice([0, 0, 1, 2])
    if spares and "runtime" not in spec:
        spec["runtime"] = {"spareWorkers": spares}
    crowd = random.Random(f"crowd {seed}")
    crowded = crowd.random() < 0.3
    if crowded and "elastic" not in spec and "agent" not in spec.get("runtime", {}) and crowd.random() < 0.7:
        waits = {"shrinkAfterSeconds": crowd.choice([0, 5]), "growAfterSeconds": crowd.choice([0, 10])}
        spec["elastic"] = {"minWorkers": crowd.choice([1, 1, spec["workers"]]), "maxWorkers": 4, **waits}
    names = sorted({**BLOWS, **(CROWDED if crowded else {})})
    blows, at, pause_s = [], 0.0, rng.choice([1.0, 4.0, 10.0])
    if crowded:
        blows.append(Struck(round(crowd.uniform(0.0, 20.0), 2), "create_other", crowd.randrange(2**32)))
    faulty_s = CROWDED_S if crowded else FAULTY_S
    while at < faulty_s:
        at += rng.expovariate(1 / pause_s) * faulty_s / FAULTY_S * (2.0 if crowded else 1.0)
        blows.append(Struck(round(at, 2), rng.choice(names), rng.randrange(2**32)))
    blows.sort(key=lambda struck: struck.at)
    return Plan(
        seed=seed,
        spec=spec,
        length=rng.choice([1, 10, 60, 120]) if not crowded else crowd.choice([60, 200, 400]),
        api_errors=rng.choice([0.0, 0.02, 0.1, 0.3]),
        late_requests=rng.choice([0.0, 0.05]),
        lost_messages=rng.choice([0.0, 0.02, 0.2]),
        notice_s=rng.choice([0.0, 0.1, 1.0]),
        capacity=spec["workers"] + crowd.choice([0, 0, 1]) if crowded else rng.choice([None, None, 4, 6]),
        crowded=crowded,
        blows=tuple(blows),
    )


def run(plan: Plan) -> Ran:
    """One run, checked to its end."""
    ran = Ran(plan)
    try:
        run_virtual(_run(plan, ran))
    except Exception as error:
        ran.failure = f"{type(error).__name__}: {error}"
    return ran


async def _run(plan: Plan, ran: Ran) -> None:
    async with Simulation(plan.seed, cluster_type=FlakyCluster) as sim:
        sim.cluster.rng = random.Random(plan.seed + 1)
        faults = RandomFaults(random.Random(plan.seed + 2), rate=plan.api_errors)
        sim.on_call = faults
        sim.cluster.late_rate, sim.network_loss = plan.late_requests, plan.lost_messages
        sim.network_echo = min(plan.lost_messages, MOST_ECHOES)
        sim.world.pace.notice, sim.world.capacity = plan.notice_s, plan.capacity
        sim.cluster.create_job(manifest(**plan.spec))
        sim.world.training("digits").length = plan.length
        telling = sim.world.spawn(_tell(sim, ran))
        try:
            await _strike(sim, plan, ran)
            faults.on, sim.cluster.late_rate, sim.network_loss, sim.network_echo = False, 0.0, 0.0, 0.0
            heal(sim)
            say(ran, "nothing breaks any more")
            for name in sorted(job["metadata"]["name"] for job in sim.cluster.jobs()):
                job = await sim.until_finished(name, CROWDED_PATIENCE_S if plan.crowded else PATIENCE_S)
                _check_end(job, sim.world.training(name), sim.checker.finished_at[job.metadata.uid])
            await _stays_finished(sim)
        finally:
            telling.cancel()
            ran.faults += faults.raised + sim.lost + len(sim.cluster.late_pods)


def _check_end(job: TrainJob, training: Training, finished_at: float) -> None:
    """Complete is complete, in status as on storage. Of a group without agents pods alone tell: what is not heard of
    before the job fails is not known. Whom nobody reaches does not hear either that the job's time is over.
    """
    complete, failed = job.status.holds("Complete"), job.status.condition("Failed")
    plain_done_at, stored_at = training.plain_done_at, training.storage.ended_at
    if stored_at is None and plain_done_at is not None and not complete:
        unheard = training.word_lost or plain_done_at > finished_at - UNHEARD_S
    else:
        deadline = failed is not None and failed.reason == contract.REASON_DEADLINE
        unheard = deadline and stored_at is not None and stored_at > finished_at
    if unheard:
        return
    assert complete == training.completed, (
        f"Complete in status: {complete}, in truth: {training.completed}; {job.status.to_json()}"
    )


async def _strike(sim: Simulation, plan: Plan, ran: Ran) -> None:
    loop = asyncio.get_running_loop()
    for struck in plan.blows:
        await asyncio.sleep(max(0.0, struck.at - loop.time()))
        sim.checker.raise_failure()
        say(ran, f"BLOW {struck.blow}")
        ran.faults += 1
        (BLOWS | CROWDED)[struck.blow](sim, random.Random(struck.seed))
    await asyncio.sleep(max(0.0, (CROWDED_S if plan.crowded else FAULTY_S) - loop.time()))


def say(ran: Ran, text: str) -> None:
    """A line of the timeline."""
    ran.timeline.append(f"{asyncio.get_running_loop().time():8.2f}  {text}")


async def _tell(sim: Simulation, ran: Ran) -> None:
    """What the job's status and its pods become, change by change."""
    shown: dict[str, str] = {}
    async for change in sim.cluster.watch_objects():
        name = change.object["metadata"]["name"]
        if change.kind == "TrainJob":
            status = change.object.get("status") or {}
            attempt, failures = status.get("attempt") or {}, status.get("failures") or {}
            text = (
                f"{status.get('phase')}: slots {status.get('slots')}, spares {status.get('spares') or '-'}, attempt {attempt.get('number')} "
                f"{attempt.get('state')} of {attempt.get('members')} ({attempt.get('endCause') or attempt.get('cause')}), "
                f"counted {failures.get('counted')}"
            )
        elif change.kind == "Pod":
            state = change.object["status"].get("phase")
            text = f"{name} {change.type.value.lower() if change.type.value == 'DELETED' else state}"
            text += " (being deleted)" if "deletionTimestamp" in change.object["metadata"] else ""
        else:
            continue
        if shown.get(name) != text:
            shown[name] = text
            say(ran, text)


async def _stays_finished(sim: Simulation) -> None:
    """Terminal, and quiet: no new attempt, no pod that still runs, no writes but the clean-up's."""
    names = [job["metadata"]["name"] for job in sim.cluster.jobs()]
    numbers = {name: _number(sim.job(name)) for name in names}
    await asyncio.sleep(120.0)
    sim.checker.raise_failure()
    assert {name: _number(sim.job(name)) for name in names} == numbers
    running = [
        pod["metadata"]["name"]
        for pod in sim.cluster.pods()
        if pod["status"]["phase"] in ("Pending", "Running") and "ownerReferences" in pod["metadata"]
    ]
    assert not running, f"still there after the end: {running}"


def _number(job: TrainJob) -> int:
    return job.status.attempt.number if job.status.attempt else 0


# --- A failing plan ---------------------------------------------------------------------------------------------------


def shrink(ran: Ran) -> Ran:
    """The smallest plan that still fails, whichever promise it breaks: no blow can be left out, and every other
    trouble that is not needed is gone.
    """
    smallest = ran
    for quiet in ({"late_requests": 0.0}, {"lost_messages": 0.0}, {"api_errors": 0.0}, {"capacity": None}):
        smallest = _if_it_fails(smallest, replace(smallest.plan, **quiet))
    size = max(1, len(smallest.plan.blows) // 2)
    while size:
        at = 0
        while at < len(smallest.plan.blows):
            blows = smallest.plan.blows
            tried = _if_it_fails(smallest, replace(smallest.plan, blows=(*blows[:at], *blows[at + size :])))
            at += 0 if tried is not smallest else size
            smallest = tried
        size //= 2
    return smallest


def _if_it_fails(known: Ran, plan: Plan) -> Ran:
    if plan == known.plan:
        return known
    ran = run(plan)
    return ran if ran.failure is not None else known


def tale(ran: Ran) -> str:
    """For a person: the smallest plan, and what happened."""
    plan = ran.plan
    lines = [
        f"seed {plan.seed} (again: TRAINJOB_SIM_SEED={plan.seed}): {ran.failure}",
        f"  spec {plan.spec}; length {plan.length}; API errors {plan.api_errors}, late {plan.late_requests}, lost "
        f"messages {plan.lost_messages}, notice {plan.notice_s} s, capacity {plan.capacity}, crowded {plan.crowded}",
        f"  blows: {', '.join(f'{struck.blow} at {struck.at}' for struck in plan.blows) or 'none'}",
        *(f"  {line}" for line in ran.timeline[-120:]),
    ]
    return "\n".join(lines)


# --- make sim ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def quiet_logs() -> Iterator[None]:
    """The operator's warnings are many, and wanted."""
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _batch(first: int, count: int) -> tuple[int, float, list[str]]:
    """Faults, CPU seconds, and the tales of those that failed."""
    begun, faults, tales = time.process_time(), 0, []
    with quiet_logs():
        for seed in range(first, first + count):
            ran = run(plan_of(seed))
            faults += ran.faults
            if ran.failure is not None:
                tales.append(tale(shrink(ran)))
    return faults, time.process_time() - begun, tales


def main() -> None:
    """Run the seeds, print the figures, end with 1 if one failed."""
    parser = argparse.ArgumentParser(description="Jobs under random faults, in virtual time.")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    faults, cpu_s, failed = 0, 0.0, 0
    starts = range(arguments.first, arguments.first + arguments.seeds, BATCH)
    counts = [min(BATCH, arguments.first + arguments.seeds - start) for start in starts]
    with ProcessPoolExecutor(arguments.processes) as pool:
        for more, seconds, tales in pool.map(_batch, starts, counts):
            faults, cpu_s, failed = faults + more, cpu_s + seconds, failed + len(tales)
            for text in tales:
                print(text, flush=True)
    rate = faults / cpu_s * 60 if cpu_s else 0.0
    print(
        f"{arguments.seeds} runs, {faults} faults, {cpu_s:.0f} CPU seconds: {rate:.0f} faults a CPU minute; {failed} failed"
    )
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()

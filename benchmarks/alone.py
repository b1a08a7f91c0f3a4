"""What the operator does for one large job, taken alone: a turn's decision, and a look through all polls that wait.
Processor time, the best of some rounds, so that a busy machine matters little. Used by `benchmarks/scale.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.figures import Figure
from support.core import World
from trainjob_api import contract
from trainjob_operator.agents.reports import Asker, read_report
from trainjob_operator.agents.roster import Roster
from trainjob_operator.core.decide import decide

ROUNDS = 5


def best_ms(work: Callable[[], object]) -> float:
    """Milliseconds of processor time, the least of some rounds."""
    taken = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        work()
        taken.append(time.process_time() - begun)
    return 1000 * min(taken)


def turns(workers: int) -> list[Figure]:
    """A decision while all train, and one when a rank has failed."""
    world = World.of(workers=workers).run()
    seen = world.observe()
    rests = best_ms(lambda: decide(seen, world.now))
    world.fail_pod(sorted(pod.slot for pod in world.pods.values())[workers // 2])
    broken = world.observe()
    fails = best_ms(lambda: decide(broken, world.now))
    at = f"{workers}_workers"
    return [Figure(f"turn_{at}", "ms", [rests]), Figure(f"turn_failure_{at}", "ms", [fails])]


def recheck(workers: int) -> list[Figure]:
    """All polls of a job are open, and its next attempt is committed: for whom is that news?"""
    world = World.of(workers=workers)
    metadata = world.job.metadata.model_copy(update={"resource_version": "1"})
    world.job = world.job.model_copy(update={"metadata": metadata})
    roster, askers = Roster(b"key"), []
    world.turn()
    world.start_pods()
    roster.commit(world.job, tuple(world.pods.values()), world.now)
    for pod in world.pods.values():
        word = {"do": contract.DO_HOLD, "grace_s": 0.0}
        said = {
            "namespace": world.job.metadata.namespace,
            "job": world.job.metadata.name,
            "job_uid": world.job.metadata.uid,
            "slot": pod.slot,
            "pod": pod.name,
            "pod_uid": pod.uid,
            "boot": 1,
            "seq": 1,
            "address": f"10.0.0.1:{pod.slot % 60000 + 1}",
            "acknowledged": word,
        }
        report = read_report(said)
        roster.accept(report, world.now)
        askers.append(Asker(report.key, report.job_uid, pod.slot, pod.uid, word, True))
    world.run()
    roster.commit(world.job, tuple(world.pods.values()), world.now)
    found = best_ms(lambda: sum(roster.has_news_for(asker) for asker in askers))
    return [Figure(f"recheck_{workers}_workers", "ms", [found])]

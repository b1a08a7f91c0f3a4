"""Kills in a row of a small job whose ranks are forks of a warm parent: what of it grows with each?

    PYTHONPATH=tests python -m benchmarks.kills [--kills N] [--every N]

Prints a row after every N kills: sums over the job's agents, over their warm parents (and what these were forked from)
and over their storage children, and the median time from a kill to the next step on all ranks. Ends with 1 if
descriptors, threads, processes or zombies grew (see `grown`): the last third of the rows is held against the first
third. That takes three rows at least, and fewer are refused. Resident memory is not judged: the
last lines say how many KiB each kill added.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks import jobs, restart
from benchmarks.jobs import Job, Step
from trainjob_api import contract

STEPS_BEFORE = 12
SETTLED_S = 1.5
"""After the first step of an attempt: the forks for the next one are there."""
WARM_UP = 10
"""Kills that are not counted: caches fill, modules are imported late."""
ROWS = 3
"""The fewest that are judged: a first one, one between, a last one."""
AGENT = b"trainjob.launch.local.pod"
STORAGE = b"trainjob.checkpoint.storage_child.child"


class Process(NamedTuple):
    """One of the machine's."""

    pid: int
    parent: int
    zombie: bool
    born: int
    words: list[bytes]


@dataclass(frozen=True)
class Count:
    """Of agents and of warm parents, after so many kills."""

    kills: int
    agent_fds: int
    agent_threads: int
    agent_kib: int
    warm_fds: int
    warm_threads: int
    warm_kib: int
    storage_kib: int
    children: int
    """Of agents: ranks, warm parents, forks that wait, stores. And what stands between agents and the command. Zombies
    are among them.
    """
    zombies: int
    shm: int
    """Files in /dev/shm, of the whole machine."""

    def row(self) -> str:
        """All numbers."""
        return " ".join(f"{value:>14}" for value in vars(self).values())


def grown(counts: Sequence[Count]) -> list[str]:
    """What must not grow, and did. A single row may have a connection more, or a process that is just ending. Threads
    of agents are those of pools, which fill up as the machine is busy: they have grown where the smallest value is
    above all that there were at first.
    """
    third = -(-len(counts) // 3)
    found = []
    for name in ("agent_fds", "agent_threads", "warm_fds", "warm_threads", "children", "zombies"):
        before, after = ([getattr(each, name) for each in rows] for rows in (counts[:third], counts[-third:]))
        first, last = (max if name == "agent_threads" else min)(before), min(after)
        if last > first:
            found.append(f"{name}: {first} -> {last}")
    return found


def processes() -> Iterator[Process]:
    """All that can be read."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        yield Process(int(name), int(fields[1]), fields[0] == b"Z", int(fields[19]), words)


def count(root: int, kills: int) -> Count:
    """Of the job that this process runs."""
    seen = list(processes())
    agents, above = found_below(root, seen)
    of_agent = [[each for each in seen if each.parent == agent.pid] for agent in agents]
    warm = [
        min(born, key=lambda each: each.born)
        for children in of_agent
        if (born := [each for each in children if contract.WARM.encode() in each.words])
    ]
    children = [*above, *(each for children in of_agent for each in children)]
    of_agents, of_warm = _sum(agents), _sum([*above, *warm])
    storage = [each for each in children if STORAGE in each.words]
    return Count(
        kills,
        *of_agents,
        *of_warm,
        _sum(storage)[2],
        len(children),
        sum(each.zombie for each in children),
        len(os.listdir("/dev/shm")),
    )


def found_below(root: int, seen: Sequence[Process]) -> tuple[list[Process], list[Process]]:
    """(its agents, what stands between it and them)."""
    agents, above, parents = [], [], [root]
    while parents:
        children = [each for each in seen if each.parent in parents]
        agents += [each for each in children if AGENT in each.words]
        others = [each for each in children if AGENT not in each.words]
        above += others
        parents = [each.pid for each in others]
    if not agents:
        raise RuntimeError(f"process {root} has no agent: `tj run` has ended, or starts its agents in another way")
    return agents, above


def _sum(group: Sequence[Process]) -> tuple[int, int, int]:
    fds, threads, kib = zip(*(_of(each.pid) for each in group), strict=True)
    return sum(fds), sum(threads), sum(kib)


def _of(pid: int) -> tuple[int, int, int]:
    """Descriptors, threads, resident KiB."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")
    )
    fds, threads = (len(os.listdir(f"/proc/{pid}/{what}")) for what in ("fd", "task"))
    return fds, threads, int(status["VmRSS"].split()[0])


def kill(job: Job, attempt: int) -> float:
    """One rank in turn, once all wait for nothing; until all have made a step again."""
    struck = attempt % jobs.RANKS

    def victim(steps: list[Step]) -> Step | None:
        far = (step for step in steps if step.attempt == attempt and step.rank == struck)
        return next((step for step in far if step.step >= STEPS_BEFORE), None)

    pid = job.wait_for(f"step {STEPS_BEFORE} of attempt {attempt}", victim).pid
    time.sleep(SETTLED_S)
    # What the steps before have noted is not read again.
    job.notes.write_bytes(b"")
    killed_at = time.time()
    os.kill(pid, signal.SIGKILL)

    def back(steps: list[Step]) -> Step | None:
        return restart.last_first_step(steps, attempt, jobs.RANKS)

    return job.wait_for(f"the step after kill {attempt}", back).time - killed_at


def main() -> int:
    """Strike, count, judge."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kills", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kills", type=int, default=100, help="how many (default: 100)")
    parser.add_argument("--every", type=int, default=10, help="kills between two rows (default: 10)")
    args = parser.parse_args()
    if args.every < 1 or args.kills // args.every + 1 < ROWS:
        parser.error(f"--kills {args.kills} --every {args.every}: fewer than {ROWS} rows say nothing about growth")
    jobs.ENVIRONMENT["STEPS_SAVE_EVERY"] = "10"
    jobs.RESTARTS = -1
    counts: list[Count] = []
    times: list[float] = []
    print(" ".join(f"{name:>14}" for name in Count.__dataclass_fields__), f"{'back_s':>8}", flush=True)
    with jobs.running(jobs.trainjob_forked) as job:
        for attempt in range(1, WARM_UP + args.kills + 1):
            times.append(kill(job, attempt))
            if attempt >= WARM_UP and (attempt - WARM_UP) % args.every == 0:
                time.sleep(SETTLED_S)
                counts.append(count(job.process.pid, attempt - WARM_UP))
                print(counts[-1].row(), f"{median(times[-args.every :]):>8.3f}", flush=True)
    first, last = counts[0], counts[-1]
    for name in ("agent_kib", "warm_kib", "storage_kib"):
        more = (getattr(last, name) - getattr(first, name)) / max(1, last.kills - first.kills)
        print(f"{name} {more:.2f} more a kill")
    found = grown(counts)
    for each in found:
        print(f"grown: {each}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

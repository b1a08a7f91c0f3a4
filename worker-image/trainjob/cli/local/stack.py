"""`tj stack`: where the ranks of a running job of this machine stand, those that stand together in one line."""

from __future__ import annotations

import argparse
import asyncio
import sys

from trainjob.agent.hangs import grouping
from trainjob.agent.processes.stacks import stack_of
from trainjob.agent.rank_names import ranks_text
from trainjob.cli.errors import AGAIN, CommandError
from trainjob.cli.local import find
from trainjob.launch.errors import ConfigError
from trainjob.launch.local import ranks
from trainjob.launch.local.registry import records
from trainjob.launch.outcome import log_choice
from trainjob.screen import changes
from trainjob.screen.asked import reason_here
from trainjob_api import contract
from trainjob_api.contract import CLI_ERROR, CLI_NOT_FOUND, CLI_OK, CLI_USAGE

LIMIT = 1 << 20
"""Bytes of one rank's stacks: all its threads."""
WAIT_S = 5.0
"""A person who asks waits longer for a rank than an agent does, whose job trains."""


def stack(args: argparse.Namespace) -> int:
    """Ask the ranks, and print; with --rank all threads of these."""
    try:
        selection = log_choice.parse(args.rank) if args.rank else log_choice.ALL
    except ConfigError as error:
        raise CommandError(
            str(error), next_step=f"`tj status {args.name}` says how many ranks there are", code=CLI_USAGE
        ) from None
    record = find.find(args)
    if record.state != records.RUNNING:
        raise CommandError(
            f"{record.name} does not run: it is {record.state}",
            next_step=f"`tj logs {record.name}` shows what its ranks said",
            code=CLI_ERROR,
        )
    there = ranks.below(record.pid)
    chosen = [each for each in there if each.rank in selection]
    restarts = _restarts(record, bool(there))
    if not there and restarts is not None:
        raise CommandError(
            f"{restarts}; no rank stands anywhere yet",
            next_step=f"{AGAIN} in a moment; `tj status {record.name}` shows what it waits for",
            code=CLI_NOT_FOUND,
        )
    if restarts is not None:
        print(f"tj  | {restarts}", file=sys.stderr, flush=True)
    if not chosen:
        raise CommandError(
            f"no such rank of {record.name} runs: {ranks_text(tuple(each.rank for each in there))} do"
            if there
            else f"no rank of {record.name} has come as far as the training library",
            next_step=f"`tj status {record.name}` shows what it waits for",
            code=CLI_NOT_FOUND,
        )
    stacks = asyncio.run(_ask(chosen))
    print("\n".join(grouping.each(stacks) if args.rank else _together(stacks)))
    return CLI_OK


def _restarts(record: records.Record, there: bool) -> str | None:
    """That it is between two attempts, or in a start that is no first one; None: its ranks run. `there`: one does."""
    job = find.job_of(record)
    attempt = None if job is None else job.status.attempt
    if job is None or attempt is None:
        return None
    if record.shown_state == records.RESTARTING or attempt.state != "Running":
        ended = "" if attempt.end_cause is None else f" [{reason_here(attempt.end_cause)}]"
        waits = changes.trouble(job.status)
        why = "" if waits is None or waits.reason != contract.REASON_BACK_OFF else f": {waits.message}"
        return f"{record.name} restarts: attempt {attempt.number} has ended{ended}, the next one has not begun{why}"
    if attempt.running_at is not None and not there:
        return f"the ranks of {record.name} have just ended: it restarts, or is over"
    if attempt.number > 1 and attempt.running_at is None:
        return f"{record.name} restarts: attempt {attempt.number} starts its ranks [{reason_here(attempt.cause)}]"
    return None


async def _ask(chosen: list[ranks.RankProcess]) -> dict[int, str]:
    texts = await asyncio.gather(*(stack_of(each.rank, each.pid, each.folder, LIMIT, WAIT_S) for each in chosen))
    return {each.rank: text for each, text in zip(chosen, texts, strict=True)}


def _together(stacks: dict[int, str]) -> list[str]:
    lines = grouping.lines(stacks)
    odd = grouping.odd(grouping.group(stacks))
    if odd:
        lines[-1] += f": --rank {odd[0]} shows all threads"
    return lines

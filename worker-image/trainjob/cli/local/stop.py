"""`tj stop`: end running jobs of this machine as Ctrl-C does in their terminals; their checkpoints stay."""

from __future__ import annotations

import argparse
import time

from trainjob.cli.errors import CommandError, for_each
from trainjob.cli.local import find
from trainjob.launch.local import lock
from trainjob.launch.local.kept import keeper
from trainjob.launch.local.registry import records
from trainjob.screen import changes, streams
from trainjob_api.contract import CLI_ERROR, CLI_OK, CLI_TIMEOUT, CLI_USAGE

POLL_S = 0.1
LET_GO_S = 10.0
"""For a launcher that has said how its job ended, and puts the rest away: until then its name is not free."""
SAID_AFTER_S = 2.0
"""A stop that takes longer says what it waits for."""


def stop(args: argparse.Namespace) -> int:
    """One after the other."""
    if args.warm:
        return _end_warm(args)
    if not args.names:
        raise CommandError("say which job", next_step="`tj list` shows them", code=CLI_USAGE)
    return for_each(args.names, lambda name: _stop(find.named(name, args.storage), args.timeout))


def _stop(record: records.Record, timeout_s: float | None) -> int:
    """Ask the launcher, and wait until nothing of the job runs any more."""
    state = record.state
    if state not in (records.RUNNING, records.ENDING):
        raise CommandError(
            f"{record.name} does not run: it is {state}", next_step=f"`tj status {record.name}` shows it"
        )
    try:
        records.ask_to_stop(record)
    except OSError as error:
        raise CommandError(
            f"{record.name} cannot be told to stop: {error}",
            next_step=f"send its launcher a signal: kill -INT {record.pid}",
            code=CLI_ERROR,
        ) from None
    began, said = time.monotonic(), False
    while (state := find.named(record.name, _storage(record)).state) in (records.RUNNING, records.ENDING):
        waited = time.monotonic() - began
        if not said and waited >= SAID_AFTER_S:
            said = True
            streams.say(*(f"tj  | {line}" for line in awaited(record)))
        if (limit := _limit(record, timeout_s)) is not None and waited > limit:
            raise _too_long(record, limit)
        time.sleep(POLL_S)
    until = time.monotonic() + LET_GO_S
    while record.has_lock and time.monotonic() < until:
        time.sleep(POLL_S)
    streams.say(f"{record.name} is stopped" if state == records.STOPPED else f"{record.name} is {state}")
    return CLI_OK


def _limit(record: records.Record, timeout_s: float | None) -> float | None:
    """After how many seconds the wait is given up. A launcher that a signal has stopped may be so for days."""
    return timeout_s if timeout_s is not None or not _is_halted(record) else _longest_s()


def _too_long(record: records.Record, waited_s: float) -> CommandError:
    if _is_halted(record):
        return CommandError(
            f"{record.name} still runs after {waited_s:.0f} s: its launcher (pid {record.pid}) was stopped by a "
            "signal, as by Ctrl-Z, and ends the job once it is continued",
            next_step=f"`fg` in its terminal, or kill -CONT {record.pid}",
            code=CLI_TIMEOUT,
        )
    return CommandError(
        f"{record.name} still stores what it holds after {waited_s:.0f} s",
        next_step=f"wait, or kill it without: kill -KILL {record.pid}",
        code=CLI_TIMEOUT,
    )


def _is_halted(record: records.Record) -> bool:
    """Whether its launcher is there, and cannot hear."""
    return record.lives and lock.is_halted(record.pid)


def _longest_s() -> float:
    from trainjob.launch.local.drive import LONGEST_STOP_S  # here: a stop that is quick need not wait for it

    return LONGEST_STOP_S


def awaited(record: records.Record) -> list[str]:
    """What a stop waits for, and how long at most."""
    if _is_halted(record):
        return [
            f"{record.name}: its launcher (pid {record.pid}) was stopped by a signal, as by Ctrl-Z; it ends the job "
            f"once it is continued: `fg` in its terminal, or kill -CONT {record.pid}"
        ]
    job = find.job_of(record)
    left = None if job is None else changes.unstored(job.status)
    lines = [
        f"{record.name}: its ranks end, and what they saved is stored; that takes {_longest_s():.0f} s at most, and "
        "is given up once storage has taken nothing for 30 s"
    ]
    return lines if left is None else [*lines, f"storage does not take it: {left.message}"]


def _end_warm(args: argparse.Namespace) -> int:
    """The process that `tj run --keep-warm` has left."""
    if args.names:
        raise CommandError("--warm is about no job", next_step="tj stop --warm", code=CLI_USAGE)
    try:
        ended = keeper.end()
    except OSError as error:
        raise CommandError(f"it cannot be asked: {error}", next_step="look at it with ps", code=CLI_ERROR) from None
    streams.say("no process is kept warm" if ended is None else f"warm process {ended.pid} has ended")
    return CLI_OK


def _storage(record: records.Record) -> str | None:
    return None if record.folder is None else record.folder.rsplit("/", 2)[0]

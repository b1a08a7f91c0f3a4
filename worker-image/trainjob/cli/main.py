"""Entry point of `tj`: parse, import the one command that was asked for, turn its error into words and an exit code.

Must import nothing but the parser, and what costs as little, at module level: the start-up time of every command is
measured here.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from trainjob.cli import jobs_parser, launchers, slips
from trainjob.cli import parser as grammar
from trainjob.cli.argument_types import job_name
from trainjob.cli.errors import CommandError, with_command
from trainjob.screen import streams
from trainjob.session import large_imports
from trainjob_api.contract import CLI_ERROR, CLI_INTERRUPTED, CLI_OK, CLI_USAGE, ENV_DEBUG


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    streams.have_all()
    try:
        return _dispatch(words)
    except CommandError as error:
        streams.say(f"tj: {error}", f"next: {with_command(error.next_step, words)}")
        return error.code
    except KeyboardInterrupt:
        return CLI_INTERRUPTED
    except BrokenPipeError:
        streams.silence(1, 2)
        return CLI_ERROR
    except Exception as error:  # the top loop: whatever it is, the shell gets a sentence and a code
        if os.environ.get(ENV_DEBUG):
            raise
        streams.say(
            f"tj: unexpected {type(error).__name__}: {error}",
            f"next: run it again with {ENV_DEBUG}=1 for the traceback, and report it",
        )
        return CLI_ERROR


def _dispatch(argv: list[str]) -> int:
    words, script_args = _split(argv)
    if words[:1] == ["help"] and len(words) > 1:  # as git and kubectl have it
        words = [*words[1:], "--help"]
    words = slips.completed(words)
    parser = grammar.build()
    args, unknown = parser.parse_known_args(words)
    if args.version:
        return _version()
    if args.command is None:
        if unknown:
            raise slips.unknown(None, ["--help", "--version"], None, unknown)
        parser.print_help()
        return CLI_USAGE
    unknown = grammar.late_words(args, unknown)
    if unknown:
        script = getattr(args, "script", None)
        if script is not None and args.command in ("run", "submit") and launchers.is_program(script):
            raise launchers.refusal(
                args.command, script, words, script_args, lambda line: parser.parse_known_args(line)[1]
            )
        known = grammar.options(parser, args.command)
        job, into = getattr(args, "what", None) or "JOB", getattr(args, "into", None) or "DIR"
        raise slips.unknown(args.command, known, script, unknown, job, into)
    if args.command not in ("run", "submit") and script_args:
        raise CommandError(
            f"`tj {args.command}` takes nothing after --",
            next_step=f"`tj {args.command} --help` shows the options",
            code=CLI_USAGE,
        )
    args.script_args, args.words = script_args, argv
    module, _, function = _entry(args).partition(":")
    with large_imports.quietly():
        command: Callable[..., int] = getattr(import_module(module), function)
    return command(args)


def _entry(args: argparse.Namespace) -> str:
    """The function for a command; of one that this machine and a cluster have, the one that its options mean."""
    if not hasattr(args, "cluster_entry"):
        return str(args.entry)
    there = jobs_parser.means_cluster(args)
    if there and getattr(args, "name", None) is not None:
        args.name = _cluster_name(args.name)
    if there and hasattr(args, "names"):
        args.names = [_cluster_name(name) for name in args.names]
    for dest, option in getattr(args, "only_here" if there else "only_there", {}).items():
        if getattr(args, dest):
            side, other = ("this machine", "a cluster") if there else ("a cluster", "this machine")
            raise CommandError(
                f"{option} is for jobs of {side}, and this is about one of {other}",
                next_step="leave it out, or the options that name a cluster"
                if there
                else "leave it out, or name a cluster: -n NAMESPACE, --cluster",
                code=CLI_USAGE,
            )
    return str(args.cluster_entry if there else args.entry)


def _cluster_name(text: str) -> str:
    try:
        return job_name(text)
    except argparse.ArgumentTypeError as error:
        raise CommandError(str(error), next_step="`tj list --cluster` shows the names", code=CLI_USAGE) from None


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    """What is ours and what stands behind the first `--`."""
    if "--" not in argv:
        return argv, []
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]


def _version() -> int:
    from importlib.metadata import version

    print(f"tj {version('trainjob')}")
    return CLI_OK


if __name__ == "__main__":
    sys.exit(main())

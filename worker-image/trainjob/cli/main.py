"""Entry point of `tj`: parse, import the one command that was asked for, turn its error into words and an exit code.

Must import nothing but the parser, and what costs as little, at module level: the start-up time of every command is
measured here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from trainjob.cli import parser as grammar
from trainjob.cli.errors import CommandError
from trainjob.screen import streams
from trainjob_api.contract import CLI_ERROR, CLI_INTERRUPTED, CLI_OK, CLI_USAGE

DEBUG = "TRAINJOB_DEBUG"
"""Set to anything: unexpected errors come with their Python traceback."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    try:
        return _dispatch(sys.argv[1:] if argv is None else list(argv))
    except CommandError as error:
        _say(f"tj: {error}", f"next: {error.next_step}")
        return error.code
    except KeyboardInterrupt:
        return CLI_INTERRUPTED
    except BrokenPipeError:
        streams.silence(1, 2)
        return CLI_ERROR
    except Exception as error:  # the top loop: whatever it is, the shell gets a sentence and a code
        if os.environ.get(DEBUG):
            raise
        _say(
            f"tj: unexpected {type(error).__name__}: {error}",
            f"next: run it again with {DEBUG}=1 for the traceback, and report it",
        )
        return CLI_ERROR


def _dispatch(argv: list[str]) -> int:
    words, script_args = _split(argv)
    parser = grammar.build()
    args, unknown = parser.parse_known_args(words)
    if args.version:
        return _version()
    if args.command is None:
        parser.print_help()
        return CLI_USAGE
    unknown = grammar.late_words(args, unknown)
    if unknown:
        raise CommandError(
            f"unknown: {' '.join(unknown)}",
            next_step=_for_unknown(args.command, getattr(args, "script", None), unknown),
            code=CLI_USAGE,
        )
    if args.command not in ("run", "submit") and script_args:
        raise CommandError(
            f"`tj {args.command}` takes nothing after --",
            next_step=f"`tj {args.command} --help` shows the options",
            code=CLI_USAGE,
        )
    args.script_args = script_args
    module, _, function = args.entry.partition(":")
    command: Callable[..., int] = getattr(import_module(module), function)
    return command(args)


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    """What is ours and what stands behind the first `--`."""
    if "--" not in argv:
        return argv, []
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]


def _for_unknown(command: str, script: str | None, unknown: list[str]) -> str:
    if script is not None:
        return f"arguments for the script go after --: tj {command} {script} ... -- {' '.join(unknown)}"
    return f"`tj {command} --help` shows the options"


def _version() -> int:
    from importlib.metadata import version

    print(f"tj {version('trainjob')}")
    return CLI_OK


def _say(*lines: str) -> None:
    streams.write(sys.stderr, "\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())

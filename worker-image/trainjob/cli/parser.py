"""The command line's grammar: argparse and nothing else, so that `tj --help` answers at once.

`main` parses with it, `reference` writes docs/reference/cli.md from it. Each command names the function that runs it as
`module:function`, which is imported when the command runs.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from trainjob.cli import jobs_parser
from trainjob.cli.argument_parser import (
    Parser,
    checkpoint_rules,
    environment,
    manifest_file,
    module,
    restart_rules,
    script,
    tracking,
)
from trainjob.cli.argument_types import WORKERS, at_least, given, keeping, workers
from trainjob.cli.checkpoints import parser as checkpoints_parser
from trainjob.cli.cluster import cluster_parser

if TYPE_CHECKING:
    from trainjob.cli.argument_parser import Commands

DESCRIPTION = "Distributed PyTorch training that starts fast, shows what it does, and recovers by itself."

EPILOG = """exit codes:
  0 done   1 the operation failed   2 wrong usage
  3 no such job or checkpoint   4 no cluster, or no access to it
  10 the job failed   11 it was stopped   12 timed out   130 interrupted

on this machine:
  tj run train.py --workers 2
  tj run train.py --workers 4 --name digits --detach -- --epochs 20
  tj list
  tj attach digits
  tj logs digits --rank 0,3-5
  tj model get digits -o ./model

on a cluster:
  tj doctor
  tj submit train.py --image IMAGE --workers 2 --gpus 8 -- --epochs 20
  tj list -n team
  tj logs digits -n team -f"""

RUN_DESCRIPTION = """Run a training job on this machine and show it until it ends.

The script runs once per rank, from this directory. When a rank dies, all ranks start again from the newest checkpoint;
--max-failures bounds how often. A job that has a name resumes where its last run stopped, unless that run
completed; --fresh starts over; --resume-from takes another checkpoint, or extends a completed job.

Ctrl-C stops the ranks, keeps what was reported, and ends with 130; a second Ctrl-C ends at once."""

RUN_EPILOG = """Arguments for the script go after --:
  tj run train.py --workers 2 -- --epochs 20 --lr 1e-3

With -f the job comes from a manifest, and the options given beside it win:
  tj run -f trainjob.yaml --local --storage ./checkpoints"""


def build() -> Parser:
    """The parser of `tj` with all commands."""
    parser = Parser(
        prog="tj",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    parser.add_argument("--version", action="store_true", help="print the version and end")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", parser_class=Parser)
    _add_run(commands)
    _add_validate(commands)
    _add_migrate(commands)
    jobs_parser.add(commands)
    cluster_parser.add(commands)
    checkpoints_parser.add(commands)
    _add_completion(commands)
    return parser


def options(parser: Parser, command: str) -> list[str]:
    """The long options of a command."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) and command in action.choices:
            return [word for each in action.choices[command]._actions for word in each.option_strings if len(word) > 2]
    return []


def late_words(args: argparse.Namespace, unknown: list[str]) -> list[str]:
    """What is really unknown: argparse takes no further words of a list once an option stood between them (`show JOB
    -n team ID`).
    """
    if not hasattr(args, "ids") or any(word.startswith("-") for word in unknown):
        return unknown
    args.ids = [*args.ids, *unknown]
    return []


def _add_run(commands: Commands) -> None:
    run = commands.add_parser(
        "run",
        help="run a script or a manifest on this machine",
        description=RUN_DESCRIPTION,
        epilog=RUN_EPILOG,
        usage="tj run SCRIPT [options] [-- ARGS ...]\n       tj run -f FILE --local [options]",
    )
    run.set_defaults(entry="trainjob.cli.run:run")
    script(run)
    what = run.add_argument_group("what runs")
    module(what)
    manifest_file(what)
    what.add_argument(
        "--local", action="store_true", help="with -f: run the manifest on this machine, without its image"
    )
    what.add_argument(
        "--name",
        metavar="NAME",
        type=given,
        help="name of the job; a run of the same name resumes where the last one stopped (default: a new one for each)",
    )
    environment(what)
    what.add_argument(
        "--in-process",
        action="store_true",
        help="one rank, inside this process: for pdb, breakpoint() and profilers; a failed rank is not restarted",
    )
    what.add_argument("--pdb", action="store_true", help="with --in-process: open a debugger where the script raised")
    tracking(what)
    size = run.add_argument_group("how large")
    size.add_argument(
        "--workers",
        metavar=WORKERS,
        type=workers,
        help="worker processes, each with its own agent (default: 1); 2-8: elastic, at least 2 and at most 8; "
        "this machine starts all, or as many as it has GPUs for (`tj scale` is for clusters)",
    )
    size.add_argument(
        "--gpus", metavar="N", type=at_least(0), help="GPUs of each worker, one rank for each of them (default: 0)"
    )
    size.add_argument(
        "--processes-per-worker",
        metavar="N",
        type=at_least(1),
        help="ranks in each worker (default: its GPUs, else 1)",
    )
    saved = run.add_argument_group("what is saved, and what it survives")
    saved.add_argument(
        "--storage",
        metavar="PATH",
        type=given,
        help="folder for checkpoints and history, relative to this directory, or s3://bucket/folder (default: "
        "~/trainjob_results)",
    )
    checkpoint_rules(saved)
    start = saved.add_mutually_exclusive_group()
    start.add_argument("--fresh", action="store_true", help="start over, whatever earlier runs of this name have saved")
    start.add_argument(
        "--resume-from",
        metavar="WHAT",
        help="resume from another job's newest checkpoint (its name), from a checkpoint of --name (its id, as 1-2-14), "
        "or from the one at a path or s3:// URI; the job's own name extends it after it has completed",
    )
    restart_rules(saved, "--max-failures")
    saved.add_argument(
        "--keep-warm",
        metavar="TIME",
        type=keeping,
        help="when the job has ended, keep a process for that long (10m) that has imported what the script needs: the "
        "next `tj run` in this folder does not import it again. `tj list` shows it, `tj stop --warm` ends it",
    )
    shown = run.add_argument_group("how it is shown")
    shown.add_argument("--detach", action="store_true", help="run it in the background; `tj attach NAME` shows it")
    shown.add_argument("--dry-run", action="store_true", help="check it, print the TrainJob, and run nothing")
    shown.add_argument(
        "--plain",
        action="store_true",
        help="one line per change instead of the live panel; the default without a terminal and where CI is set",
    )


def _add_validate(commands: Commands) -> None:
    validate = commands.add_parser(
        "validate",
        help="check a TrainJob manifest without running it",
        description="Check the TrainJobs in a manifest: every field's name, type and meaning. Ends with 0 if all are "
        "valid, 1 if not.",
        usage="tj validate FILE\n       tj validate -f FILE",
    )
    validate.set_defaults(entry="trainjob.cli.validate:validate")
    validate.add_argument("manifest", nargs="?", metavar="FILE", help="the manifest, as with -f")
    validate.add_argument(
        "-f",
        "--file",
        metavar="FILE",
        help="the manifest (- reads standard input); other kinds of objects in it are skipped",
    )


def _add_migrate(commands: Commands) -> None:
    migrate = commands.add_parser(
        "migrate",
        help="rewrite a script's imports of Ray Train, or a manifest of Kubeflow or a JobSet",
        description="For a Python script: show what its imports of Ray become, and line by line what differs. For a "
        "PyTorchJob, TFJob, MPIJob or TrainJob of Kubeflow, or a JobSet (.yaml): print the TrainJob that it becomes, "
        "after comments on what changed. Ends with 1 if a line would not run, or if a manifest cannot become a "
        "TrainJob.",
    )
    migrate.set_defaults(entry="trainjob.cli.migrate.command:migrate")
    migrate.add_argument("files", nargs="+", metavar="FILE", help="scripts, and manifests whose names end in .yaml")
    what = migrate.add_mutually_exclusive_group()
    what.add_argument("--diff", action="store_true", help="show the change of each script")
    what.add_argument("--write", action="store_true", help="rewrite the scripts in place")


def _add_completion(commands: Commands) -> None:
    completion = commands.add_parser(
        "completion",
        help="print a completion script for your shell",
        description="Print a script by which your shell completes commands, options and names of jobs. For bash and "
        "zsh put `source <(tj completion bash)` into ~/.bashrc or ~/.zshrc; for fish write it to "
        "~/.config/fish/completions/tj.fish.",
    )
    completion.set_defaults(entry="trainjob.cli.completion:completion")
    completion.add_argument("shell", metavar="SHELL", choices=("bash", "zsh", "fish"), help="bash, zsh or fish")

"""The grammar of the commands about jobs of this machine, and of those that a cluster's jobs have too. argparse and
nothing else.

Which is meant is a rule and no guess: an option that names a cluster (`CLUSTER_OPTIONS`) means a cluster's job, and
without one it is this machine's. `main` asks `means_cluster` and starts the entry of that side.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from trainjob.cli.argument_parser import cluster_access, output
from trainjob.cli.argument_types import age, at_least, given, run, seconds, words

if TYPE_CHECKING:
    from trainjob.cli.argument_parser import Commands, Parser

CLUSTER_OPTIONS = ("namespace", "cluster", "context", "kubeconfig", "all_namespaces")

RULE = """Without -n, --cluster, --context or --kubeconfig the command is about jobs of this machine; with one of them,
about jobs of a cluster."""

LIST = f"""List jobs, the newest first: those that ran on this machine (`tj run`, TorchTrainer, `trainjob.init()`), or
those of a cluster's namespace. Of a name that was started several times, the row is the newest run's; RUN is its
number. --runs shows a row for each run.

{RULE}"""

STATUS = f"""Show a job on one screen: state, progress, its ranks with their processes or pods, its attempts, what to do
next. --run shows an earlier run of the name.

{RULE}"""

LOGS = f"""Show what the ranks wrote, each line with its rank in front.

For a job of this machine: the newest run, or that of --run, with all its attempts. For a job of a cluster: all
ranks if there are up to 8, else rank 0; --rank chooses others. With -f the command waits for pods that are not there
yet, follows the job through restarts and replaced pods, and ends with the job: on a cluster with its exit code, of a
job of this machine with 0 (`tj attach` has the code).

{RULE}"""

HISTORY = f"""Show the attempts of a job: how long each took until its first report, how long it ran, what was lost of
it, why it ended; and where the job's time went. --parts shows how each attempt began, part by part.

For a job of this machine also its runs, if there were several, and what the newest one reported, each report once:
steps that a restart undid are left out. --run shows another run, --all the reports of all runs.

{RULE}"""

ATTACH = f"""Show a job that runs in the background, in another terminal or on a cluster, as `tj run` shows it, until it
ends. The exit code is the job's. Ctrl-C leaves it running. Of a job that has ended, the command says how. On a cluster,
the last lines of each pod are shown from before; `tj logs` has them all.

{RULE}"""

STOP = f"""Stop jobs of this machine as Ctrl-C does in their terminals, however they were started. Their ranks end, what
they saved is stored, and the same command resumes from there. On a cluster this is `tj cancel`: the job's pods end, its
checkpoints stay, and `tj resume` starts it again.

{RULE}"""

STACK = f"""Show where the ranks of a running job are: ranks in the same place share one line, and ranks
that are not where most are get named. Training continues. --rank shows all threads of the ranks that you name.

A rank that is stopped (SIGSTOP, a debugger) has no stack to show; the output says so. On a cluster the question is an
annotation on the TrainJob, and rank 0's agent asks all ranks: you need no right to run commands in pods.

{RULE}"""

HANG = f"""Show which ranks of a job hang, or hung the last time: which ranks wait, where, since when; which rank to
look at; and the stacks of all ranks. spec.hang (`tj run --hang`) sets what happens then. Also ranks that
keep the others waiting in each step (docs/stragglers.md).

{RULE}"""

REMOVE = f"""Remove ended jobs of this machine with everything that they stored; with --keep-best, only their
checkpoints except the best one. The command says how much that is and asks first; without a terminal it needs --yes.

Running jobs are left alone, and so are folders that hold files of something else. Of several names, each that can go
goes, and the exit code is the worst one.

On a cluster this is `tj delete` for jobs that have ended, were cancelled or are suspended: the TrainJob and its pods
go, what they stored stays, and nothing is asked. `tj checkpoints rm` removes checkpoints.

{RULE}"""


def means_cluster(args: argparse.Namespace) -> bool:
    """Whether an option names a cluster."""
    return any(getattr(args, name, None) for name in CLUSTER_OPTIONS)


def add(commands: Commands) -> None:
    """All of them."""
    listing = _shared(commands, "list", "list the jobs of this machine, or of a cluster", LIST, "listing")
    listing.add_argument("-A", "--all-namespaces", action="store_true", help="jobs in all namespaces of a cluster")
    listing.add_argument(
        "-l", "--selector", metavar="LABELS", help="only jobs with these labels, as in kubectl: team=ml,tier!=test"
    )
    listing.add_argument(
        "--status",
        metavar="WORDS",
        type=words,
        help="only jobs in these states, as STATUS shows them: running, or failed,complete",
    )
    listing.add_argument("--runs", action="store_true", help="a row for each run of a name, the newest first")
    output(listing, "wide", "name", "json")
    _cluster(listing)
    listing.set_defaults(only_here={"runs": "--runs"}, only_there={"selector": "-l"})
    status = _shared(commands, "status", "show a job on one screen", STATUS, "status")
    _name(status)
    output(status, "json")
    status.add_argument(
        "--watch", action="store_true", help="keep showing the job until it ends, and end with its exit code"
    )
    _plain(status)
    _run(status)
    _cluster(status)
    status.set_defaults(only_here={"run": "--run", "storage": "--storage"})
    logs = _shared(commands, "logs", "show the lines of a job's ranks", LOGS, "logs")
    _name(logs)
    logs.add_argument("--rank", metavar="RANKS", help="which ranks: 0, 0,3-5 or all")
    _run(logs)
    logs.add_argument("--attempt", metavar="N", type=at_least(1), help="only this attempt (jobs of this machine)")
    logs.add_argument("-f", "--follow", action="store_true", help="keep following until the job ends")
    logs.add_argument(
        "--previous", action="store_true", help="lines of the containers before their last restart (on a cluster)"
    )
    logs.add_argument("--tail", metavar="N", type=at_least(0), help="only the last N lines (on a cluster: of each pod)")
    _cluster(logs)
    only_here = {"run": "--run", "attempt": "--attempt", "storage": "--storage"}
    logs.set_defaults(only_here=only_here, only_there={"previous": "--previous"})
    _add_local(commands)


def _add_local(commands: Commands) -> None:
    history = _shared(commands, "history", "show a job's attempts, its time, and its reports", HISTORY, "history")
    _name(history)
    which = history.add_mutually_exclusive_group()
    _run(which)
    which.add_argument("--all", action="store_true", help="the reports of all runs of the name, with the run of each")
    history.add_argument(
        "--parts", action="store_true", help="also how each attempt began, part by part (docs/recovery.md)"
    )
    history.add_argument("--tail", metavar="N", type=at_least(0), help="only the last N reports")
    output(history, "json")
    _cluster(history)
    history.set_defaults(only_here={"run": "--run", "all": "--all", "tail": "--tail", "storage": "--storage"})
    attach = _shared(commands, "attach", "show a running job until it ends", ATTACH, "attach")
    _name(attach)
    _plain(attach)
    _cluster(attach)
    stop = _shared(commands, "stop", "stop jobs; their checkpoints stay", STOP, "stop")
    stop.add_argument("names", metavar="NAME", nargs="*", help="names of the jobs")
    _storage(stop)
    stop.add_argument(
        "--warm", action="store_true", help="end the process that `tj run --keep-warm` has left; jobs that run go on"
    )
    stop.add_argument(
        "--timeout",
        metavar="TIME",
        type=seconds,
        help="how long to wait for the job to end (default: no limit; 60 s where Ctrl-Z has stopped its launcher)",
    )
    _cluster(stop)
    stop.set_defaults(only_here={"warm": "--warm", "timeout": "--timeout", "storage": "--storage"})
    stack = _shared(commands, "stack", "show where a running job's ranks are", STACK, "stack")
    _name(stack)
    stack.add_argument("--rank", metavar="RANKS", help="show all threads of these ranks: 0, 0,3-5 or all")
    _cluster(stack)
    stack.set_defaults(only_here={"storage": "--storage"})
    hang = _shared(commands, "hang", "show which ranks of a job hang", HANG, "hang")
    _name(hang)
    output(hang, "json")
    _cluster(hang)
    remove = _shared(commands, "rm", "remove ended jobs", REMOVE, "remove")
    remove.add_argument("names", metavar="NAME", nargs="*", help="names of the jobs")
    _storage(remove)
    remove.add_argument(
        "--older-than",
        metavar="AGE",
        type=age,
        help="all jobs, and earlier runs of others, that ended longer ago: 12h, 30d",
    )
    remove.add_argument(
        "--keep-best", action="store_true", help="keep the job and its best checkpoint (without a score: the latest)"
    )
    remove.add_argument("-y", "--yes", action="store_true", help="do not ask (on a cluster nothing is asked)")
    _cluster(remove)
    remove.set_defaults(only_here={"older_than": "--older-than", "keep_best": "--keep-best", "storage": "--storage"})


def _shared(commands: Commands, name: str, help: str, description: str, function: str) -> Parser:
    """A command of both sides: one module of the same name on each."""
    module = {"list": "listing", "rm": "remove"}.get(name, name)
    parser = commands.add_parser(name, help=help, description=description)
    parser.set_defaults(
        entry=f"trainjob.cli.local.{module}:{function}", cluster_entry=f"trainjob.cli.cluster.{module}:{function}"
    )
    return parser


def _name(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the job")
    _storage(parser)


def _run(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--run", metavar="K", type=run, help="an earlier run of this name: its number, or a checkpoint of it (3-1-2)"
    )


def _storage(parser: Parser) -> None:
    parser.add_argument(
        "--storage",
        metavar="PATH",
        type=given,
        help="where the job was stored, if several jobs of this machine have that name",
    )


def _plain(parser: Parser) -> None:
    parser.add_argument("--plain", action="store_true", help="one line per change instead of the live panel")


def _cluster(parser: Parser) -> None:
    group = parser.add_argument_group("of a cluster")
    group.add_argument("-n", "--namespace", metavar="NS", help="namespace on a cluster (default: the context's)")
    cluster_access(group)
    if any(action.dest == "storage" for action in parser._actions):
        parser.set_defaults(only_here={"storage": "--storage"})

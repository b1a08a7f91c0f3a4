"""The grammar of the commands that speak to a cluster. argparse and nothing else; `parser.py` puts it beside the
local ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainjob.cli.argument_parser import cluster_place, output
from trainjob.cli.argument_types import at_least, job_name, seconds
from trainjob.cli.cluster import submit_parser

if TYPE_CHECKING:
    from trainjob.cli.argument_parser import Commands, Parser

CANCEL_DESCRIPTION = """Stop a job for good and keep everything.

It is suspended (spec.suspend: true) and marked as cancelled: its pods end, its checkpoints stay, `tj status` still
shows what it did, and a command that waits for it ends with exit code 11. `tj resume` starts it again; `tj delete`
removes it."""

BOUNDARY = """A job that trains is stopped at the next report() that brings a checkpoint, so that no step is lost; at
the latest after spec.boundaryTimeoutSeconds (60). One that has not reported yet is stopped at once."""

SUSPEND_DESCRIPTION = f"""Give a job's pods back; it keeps its checkpoints, and `tj resume` lets it continue.

{BOUNDARY}"""

RESTART_DESCRIPTION = f"""Start all ranks again in the pods that are there, from the newest checkpoint. This is not
counted as a failure.

{BOUNDARY}"""

SCALE_DESCRIPTION = f"""Change the number of workers; training resumes from the newest checkpoint. For an
elastic job, N lies between spec.elastic.minWorkers and maxWorkers.

{BOUNDARY} With more workers, training continues until the new ones are up."""

DOCTOR_DESCRIPTION = """Check what a job needs.

On this machine: Python, torch, GPUs, cores, memory, shared memory, disk. On the kubeconfig's cluster, if there is one:
whether it answers, the CRD, the operator and its coordinator, your rights, storage, GPUs. With -n, --cluster, --context
or --kubeconfig: the cluster alone.

Each finding comes with the command that fixes it. Ends with 1 if something is broken."""

WAITED_FOR = ("complete", "failed", "running", "suspended", "deleted")


def add(commands: Commands) -> None:
    """All commands that speak to a cluster."""
    submit_parser.add(commands)
    _add_events(commands)
    _add_controls(commands)
    _add_wait(commands)
    _add_doctor(commands)


def _command(
    commands: Commands,
    name: str,
    entry: str,
    *,
    help: str,
    description: str = "",
    usage: str | None = None,
    epilog: str | None = None,
) -> Parser:
    parser = commands.add_parser(
        name,
        help=help,
        description=description or f"{help[0].upper()}{help[1:]}.",
        usage=usage,
        epilog=epilog,
    )
    parser.set_defaults(entry=entry)
    return parser


def _name(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", type=job_name, help="name of the job")


def _add_events(commands: Commands) -> None:
    events = _command(
        commands,
        "events",
        "trainjob.cli.cluster.events:events",
        help="show the Kubernetes events of a job and its pods",
    )
    _name(events)
    output(events, "json")
    cluster_place(events)


def _add_controls(commands: Commands) -> None:
    control = "trainjob.cli.cluster.control"
    suspend = _command(
        commands,
        "suspend",
        f"{control}:suspend",
        help="give a job's pods back; it keeps its checkpoints",
        description=SUSPEND_DESCRIPTION,
    )
    resume = _command(
        commands,
        "resume",
        f"{control}:resume",
        help="resume a suspended or cancelled job from its newest checkpoint",
    )
    restart = _command(
        commands,
        "restart",
        f"{control}:restart",
        help="start all ranks of a job again",
        description=RESTART_DESCRIPTION,
    )
    scale = _command(
        commands,
        "scale",
        f"{control}:scale",
        help="change the number of workers; training resumes from the newest checkpoint",
        description=SCALE_DESCRIPTION,
    )
    cancel = _command(
        commands,
        "cancel",
        f"{control}:cancel",
        help="stop a job for good; its checkpoints stay",
        description=CANCEL_DESCRIPTION,
    )
    delete = _command(
        commands, "delete", f"{control}:delete", help="delete a job and its pods; checkpoints stay on storage"
    )
    for parser in (suspend, resume, restart, scale, cancel, delete):
        _name(parser)
    scale.add_argument("workers", metavar="N", type=at_least(1), help="worker pods")
    delete.add_argument("--wait", action="store_true", help="wait until the job and its pods are gone")
    for parser in (suspend, resume, restart, scale, cancel, delete):
        cluster_place(parser)


def _add_wait(commands: Commands) -> None:
    wait = _command(
        commands,
        "wait",
        "trainjob.cli.cluster.wait:wait",
        help="wait until a job is in a state; the exit code says how it went",
    )
    _name(wait)
    wait.add_argument(
        "--for",
        dest="awaited",
        choices=WAITED_FOR,
        default="complete",
        metavar="STATE",
        help=f"{' | '.join(WAITED_FOR)} (default: complete)",
    )
    wait.add_argument(
        "--timeout",
        metavar="TIME",
        type=seconds,
        help="how long to wait at most: 90s, 10m or 1h30m (default: no limit)",
    )
    cluster_place(wait)


def _add_doctor(commands: Commands) -> None:
    doctor = _command(
        commands,
        "doctor",
        "trainjob.cli.cluster.doctor:doctor",
        help="check this machine, the cluster, the installation and your rights",
        description=DOCTOR_DESCRIPTION,
    )
    doctor.add_argument(
        "--operator-namespace",
        metavar="NS",
        default="trainjob-system",
        help="where TrainJob is installed (default: trainjob-system, else where it is found)",
    )
    output(doctor, "json")
    cluster_place(doctor)

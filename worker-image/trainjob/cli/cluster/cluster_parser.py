"""The grammar of the commands that speak to a cluster. argparse and nothing else; `parser.py` puts it beside the
local ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainjob.cli.argument_parser import checkpoint_rules, cluster_access, output, verbose
from trainjob.cli.argument_types import assignment, at_least, job_name, seconds, volume

if TYPE_CHECKING:
    from trainjob.cli.argument_parser import Commands, Parser

SUBMIT_DESCRIPTION = """Start a training job on a cluster.

With -f the job comes from a manifest. With a script it is made of the options, and the code travels along: the files
of this directory (in a git repository those that git does not ignore; .tjignore takes out more), packed, as long as
they fit a ConfigMap (700 KiB), or more with --storage at s3://. Each pod unpacks them into /code and works there.

A job that has a name and storage goes on where an earlier one of that name stopped, unless that one completed."""

SUBMIT_EPILOG = """Arguments for the script go after --:
  tj submit train.py --image IMAGE --workers 2 --gpus 8 \\
      --volume my-claim:/data --storage /data/runs -- --epochs 20

Ctrl-C while it is watched leaves the job running."""

CANCEL_DESCRIPTION = """Stop a job for good and keep everything.

It is suspended (spec.suspend: true) and marked as cancelled: its pods end, its checkpoints stay, `tj status` still
tells what it did, and whoever waits for it ends with exit code 11. `tj resume` takes it back; `tj delete` removes
it."""

RESTART_DESCRIPTION = (
    """Begin a new attempt now, in the pods that are there, from the newest checkpoint. Not counted as a failure."""
)

DOCTOR_DESCRIPTION = """Check what a job needs: a cluster that answers, the CRD, an operator that leads, its
coordinator, your rights, storage, GPUs.

Each finding that needs something comes with the command that mends it. Ends with 1 if something is broken."""

WAITED_FOR = ("complete", "failed", "running", "suspended", "deleted")


def add(commands: Commands) -> None:
    """All commands that speak to a cluster."""
    _add_submit(commands)
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


def _where(parser: Parser) -> None:
    group = parser.add_argument_group("which cluster")
    group.add_argument("-n", "--namespace", metavar="NS", help="namespace (default: the context's)")
    cluster_access(group)


def _name(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", type=job_name, help="name of the job")


def _add_submit(commands: Commands) -> None:
    usage = "tj submit -f FILE [options]\n       tj submit SCRIPT --image IMAGE [options] [-- ARGS ...]"
    submit = _command(
        commands,
        "submit",
        "trainjob.cli.cluster.submit:submit",
        help="start a job on a cluster",
        description=SUBMIT_DESCRIPTION,
        usage=usage,
        epilog=SUBMIT_EPILOG,
    )
    submit.add_argument(
        "script", nargs="?", metavar="SCRIPT", help="Python script that every rank runs; relative to this directory"
    )
    what = submit.add_argument_group("what runs")
    what.add_argument(
        "-f", "--file", metavar="FILE", help="take the job from a TrainJob manifest (- reads standard input)"
    )
    what.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module's name, as in python -m")
    what.add_argument(
        "--image", metavar="IMAGE", help="image of the pods: Python 3.9 or newer and what the script imports"
    )
    what.add_argument("--name", metavar="NAME", help="name of the job (default: a new one each time)")
    what.add_argument(
        "--env",
        metavar="K=V",
        type=assignment,
        action="append",
        default=[],
        help="set an environment variable of the ranks; may be given again",
    )
    verbose(what)
    what.add_argument(
        "--code",
        metavar="DIR",
        default=".",
        help="folder whose files travel; SCRIPT is relative to it (default: this directory)",
    )
    what.add_argument("--no-code", action="store_true", help="nothing travels: SCRIPT is a path in the image")
    size = submit.add_argument_group("how large")
    size.add_argument("--workers", metavar="N", type=at_least(1), help="worker pods (default: 1)")
    size.add_argument(
        "--gpus", metavar="N", type=at_least(0), help="GPUs of each pod, one rank for each of them (default: 0)"
    )
    size.add_argument(
        "--processes-per-worker", metavar="N", type=at_least(1), help="ranks in each pod (default: its GPUs, else 1)"
    )
    size.add_argument("--cpu", metavar="Q", help="CPUs of each pod, such as 8 or 500m")
    size.add_argument("--memory", metavar="Q", help="memory of each pod, such as 64Gi")
    saved = submit.add_argument_group("what is saved, and what it survives")
    saved.add_argument(
        "--storage",
        metavar="PATH",
        help="folder for checkpoints inside the pods, on a volume that all of them mount, or s3://bucket/folder "
        "(default: none)",
    )
    saved.add_argument(
        "--s3-endpoint",
        metavar="URL",
        help="where the pods reach s3://, such as https://minio.storage:9000 (default: AWS)",
    )
    saved.add_argument("--s3-region", metavar="NAME", help="region of the bucket")
    saved.add_argument(
        "--s3-secret",
        metavar="NAME",
        help="Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (default: the pods' own role)",
    )
    saved.add_argument(
        "--s3-ca-config-map",
        metavar="NAME",
        help="ConfigMap whose ca.crt vouches for the endpoint's certificate (default: the authorities that boto3 "
        "knows)",
    )
    saved.add_argument(
        "--volume",
        metavar="CLAIM:PATH",
        type=volume,
        action="append",
        default=[],
        help="mount a PersistentVolumeClaim (or a folder of the nodes) at PATH; may be given again",
    )
    checkpoint_rules(saved)
    saved.add_argument("--fresh", action="store_true", help="start over, whatever earlier jobs of this name have saved")
    saved.add_argument(
        "--restarts",
        "--max-failures",
        dest="max_failures",
        metavar="N",
        type=at_least(-1),
        help="failures that are answered with a restart; -1: no limit (default: 3)",
    )
    after = submit.add_argument_group("and then")
    after.add_argument("--replace", action="store_true", help="delete a job of this name first; its checkpoints stay")
    after.add_argument("--wait", action="store_true", help="show the job until it ends, and end with its exit code")
    after.add_argument("--logs", action="store_true", help="with the lines of its ranks (implies --wait)")
    after.add_argument("--plain", action="store_true", help="one line per change instead of the live panel")
    after.add_argument("--dry-run", action="store_true", help="print what would be created, and create nothing")
    _where(submit)


def _add_events(commands: Commands) -> None:
    events = _command(
        commands,
        "events",
        "trainjob.cli.cluster.events:events",
        help="show the Kubernetes events of a job and its pods",
    )
    _name(events)
    output(events, "json")
    _where(events)


def _add_controls(commands: Commands) -> None:
    control = "trainjob.cli.cluster.control"
    suspend = _command(
        commands, "suspend", f"{control}:suspend", help="give a job's pods back; it keeps its checkpoints"
    )
    resume = _command(
        commands,
        "resume",
        f"{control}:resume",
        help="let a suspended or cancelled job go on from its newest checkpoint",
    )
    restart = _command(
        commands, "restart", f"{control}:restart", help="begin a new attempt", description=RESTART_DESCRIPTION
    )
    scale = _command(
        commands,
        "scale",
        f"{control}:scale",
        help="change the number of workers; training goes on from the newest checkpoint",
    )
    cancel = _command(
        commands,
        "cancel",
        f"{control}:cancel",
        help="stop a job for good, keep its checkpoints",
        description=CANCEL_DESCRIPTION,
    )
    delete = _command(
        commands, "delete", f"{control}:delete", help="delete a job and its pods; checkpoints stay on storage"
    )
    for parser in (suspend, resume, restart, scale, cancel, delete):
        _name(parser)
    scale.add_argument("workers", metavar="N", type=at_least(1), help="worker pods")
    delete.add_argument("--wait", action="store_true", help="until the job and its pods are gone")
    for parser in (suspend, resume, restart, scale, cancel, delete):
        _where(parser)


def _add_wait(commands: Commands) -> None:
    wait = _command(
        commands,
        "wait",
        "trainjob.cli.cluster.wait:wait",
        help="wait for a state of a job, and tell by the exit code how it went",
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
        help="at most this long, such as 90s, 10m or 1h30m (default: no limit)",
    )
    _where(wait)


def _add_doctor(commands: Commands) -> None:
    doctor = _command(
        commands,
        "doctor",
        "trainjob.cli.cluster.doctor:doctor",
        help="check the cluster, the installation and your rights",
        description=DOCTOR_DESCRIPTION,
    )
    doctor.add_argument(
        "--operator-namespace",
        metavar="NS",
        default="trainjob-system",
        help="where TrainJob is installed (default: trainjob-system)",
    )
    output(doctor, "json")
    _where(doctor)

"""The grammar of `tj submit`. argparse and nothing else; `cluster_parser.py` puts it beside the other commands."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from trainjob.cli.argument_parser import (
    checkpoint_rules,
    cluster_place,
    environment,
    manifest_file,
    module,
    restart_rules,
    script,
    tracking,
)
from trainjob.cli.argument_types import WORKERS, at_least, given, label, secret_key, toleration, volume, workers

if TYPE_CHECKING:
    from trainjob.cli.argument_parser import Commands

SUBMIT_DESCRIPTION = """Start a training job on a cluster.

With -f the job comes from a manifest. With a script, the options make the job, and your code travels along: the files
of this directory, packed. In a git repository, files that git ignores stay out; .tjignore leaves out more. They may
take 700 KiB in a ConfigMap, or more with --storage at s3://. Each pod unpacks them into /code and runs there.

A job that has a name and storage resumes where an earlier one of that name stopped, unless that one completed."""

SUBMIT_EPILOG = """Arguments for the script go after --:
  tj submit train.py --image IMAGE --workers 2 --gpus 8 \\
      --volume my-claim:/data --storage /data/runs -- --epochs 20

Ctrl-C stops watching and leaves the job running."""


def add(commands: Commands) -> None:
    """The command."""
    usage = "tj submit -f FILE [options]\n       tj submit SCRIPT --image IMAGE [options] [-- ARGS ...]"
    submit = commands.add_parser(
        "submit",
        help="start a job on a cluster",
        description=SUBMIT_DESCRIPTION,
        usage=usage,
        epilog=SUBMIT_EPILOG,
    )
    submit.set_defaults(entry="trainjob.cli.cluster.submit:submit")
    script(submit)
    what = submit.add_argument_group("what runs")
    manifest_file(what)
    module(what)
    what.add_argument(
        "--image", metavar="IMAGE", help="image of the pods: Python 3.9 or newer and what the script imports"
    )
    what.add_argument("--name", metavar="NAME", type=given, help="name of the job (default: a new one each time)")
    environment(what)
    tracking(what)
    what.add_argument(
        "--code",
        metavar="DIR",
        default=".",
        help="folder whose files are sent; SCRIPT is relative to it (default: this directory)",
    )
    what.add_argument("--no-code", action="store_true", help="send no files: SCRIPT is a path in the image")
    size = submit.add_argument_group("how large")
    size.add_argument(
        "--workers",
        metavar=WORKERS,
        type=workers,
        help="worker pods (default: 1); 2-8: elastic, at least 2 and at most 8",
    )
    size.add_argument(
        "--gpus", metavar="N", type=at_least(0), help="GPUs of each pod, one rank for each of them (default: 0)"
    )
    size.add_argument(
        "--processes-per-worker", metavar="N", type=at_least(1), help="ranks in each pod (default: its GPUs, else 1)"
    )
    size.add_argument("--cpu", metavar="Q", help="CPUs of each pod, such as 8 or 500m")
    size.add_argument("--memory", metavar="Q", help="memory of each pod, such as 64Gi")
    _pods(submit.add_argument_group("its pods"))
    saved = submit.add_argument_group("what is saved, and what it survives")
    saved.add_argument(
        "--storage",
        metavar="PATH",
        type=given,
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
    restart_rules(saved, "--restarts", "--max-failures")
    after = submit.add_argument_group("and then")
    after.add_argument("--replace", action="store_true", help="delete a job of this name first; its checkpoints stay")
    after.add_argument("--wait", action="store_true", help="show the job until it ends, and end with its exit code")
    after.add_argument("--logs", action="store_true", help="show the lines of its ranks too (implies --wait)")
    after.add_argument("--plain", action="store_true", help="one line per change instead of the live panel")
    after.add_argument("--dry-run", action="store_true", help="print what would be created, and create nothing")
    cluster_place(submit)


def _pods(group: argparse._ArgumentGroup) -> None:
    """Where they run, what they are given, and what their namespace demands. With -f these go over the template."""
    many: dict[str, Any] = {"action": "append", "default": []}
    group.add_argument(
        "--template",
        metavar="FILE",
        help="pod template to start from: sidecars, affinity, whatever has no option here; a container named trainer "
        "keeps its other fields",
    )
    group.add_argument(
        "--env-from-secret",
        metavar="NAME",
        help="every key of this Secret becomes a variable of the ranks; may be given again",
        **many,
    )
    group.add_argument(
        "--secret-env",
        metavar="K=SECRET:KEY",
        type=secret_key,
        help="a variable of the ranks with one key of a Secret; may be given again",
        **many,
    )
    group.add_argument(
        "--label", metavar="K=V", type=label, help="label of the job and its pods; may be given again", **many
    )
    group.add_argument(
        "--node-selector",
        metavar="K=V",
        type=label,
        help="run only on nodes with this label; may be given again",
        **many,
    )
    group.add_argument(
        "--toleration",
        metavar="KEY[=VALUE][:EFFECT]",
        type=toleration,
        help="run also on nodes with this taint, such as nvidia.com/gpu or team=ml:NoSchedule; may be given again",
        **many,
    )
    group.add_argument(
        "--pull-secret", metavar="NAME", help="Secret that the image is pulled with; may be given again", **many
    )
    group.add_argument("--service-account", metavar="NAME", help="service account of the pods (default: default)")
    group.add_argument(
        "--restricted",
        action="store_true",
        help="fit a namespace that enforces the restricted pod security standard: user 1000, no privileges; what the "
        "template says itself stays",
    )

"""The grammar of `tj checkpoints` and `tj model`. argparse and nothing else; `parser.py` puts it beside the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainjob.cli.argument_parser import cluster_access, output
from trainjob.cli.argument_types import at_least

if TYPE_CHECKING:
    from trainjob.cli.argument_parser import Commands, Parser

WHERE = """JOB is a job's name, or the path or s3:// URI of its folder (<storage>/<namespace>/<name>) or of one
checkpoint in it. A name means a job of this machine; with -n, --cluster, --context or --kubeconfig, a job of
a cluster. The job need not exist any more."""

DESCRIPTION = f"""Look at a job's checkpoints, download them, remove them.

{WHERE}"""

LIST = """List the committed checkpoints of a job's newest run, oldest first. `tj checkpoints JOB` does the same.

Marks: latest (what a restart resumes from), best (by the job's score attribute), in use (what the running attempt
started from), validated, validation open, validation failed, validation timed out (what became of its
validation), damaged (no restart takes it), unfinished (no manifest: its upload is under way, or was given up),
removing (its removal was interrupted; rm finishes it)."""

SHOW = """Show one checkpoint: what was reported with it, which checkpoints it is based on, its files with their
checksums. Without ID: the latest."""

VERIFY = """Read every file of the checkpoints and compare sizes and checksums with the manifests. Without ID: all of
the newest run.

Ends with 1 when something is damaged, and names each file. Writes nothing unless --mark is given: then damaged
checkpoints are marked, so that no restart takes them."""

DOWNLOAD = """Download a checkpoint into a folder and verify it. Without ID: the latest.

The folder is then a checkpoint of its own, which `tj checkpoints show`, resumeFrom and trainjob.Checkpoint(path)
take. --files limits which files come. Run the same command again to continue an interrupted download; a folder that
holds anything else is left alone.

Files that your own code has put elsewhere (NO_UPLOAD) are copied from there, all or none. They have no checksums to
compare with, and the folder must be new or empty."""

REMOVE = """Remove checkpoints for good: the manifest first, then the files, so that nobody reads half of one.

Asks first; without a terminal it needs --yes. Needs --force for the latest checkpoint of a job that may still resume,
and for the one that its running attempt started from."""

MODEL_GET = """Download the files of a job's best checkpoint and verify them: those that the script saved, without the
library's own.

The best is chosen by the job's score attribute (spec.checkpoint.scoreAttribute, CheckpointConfig), or by --metric and
--mode. Without either, or with --latest, the latest is taken.

Files that your own code has put elsewhere (NO_UPLOAD) are copied from there, unverified: they have no checksums."""

ONE, MANY, SOME = "[ID]", "[ID ...]", "ID ..."
IDS = "a checkpoint's identity (1-2-14), `latest` or `best`"


def add(commands: Commands) -> None:
    """Both commands."""
    _add_checkpoints(commands)
    _add_model(commands)


def _add_checkpoints(commands: Commands) -> None:
    actions = _group(commands, "checkpoints", "list, show, verify, download, remove a job's checkpoints", DESCRIPTION)
    module = "trainjob.cli.checkpoints.commands"
    listing = _action(actions, "list", f"{module}:listing", "list a job's checkpoints", LIST)
    output(listing, "wide", "name", "json")
    listing.add_argument(
        "-a", "--all", action="store_true", help="checkpoints of all runs, and those that are not committed"
    )
    show = _action(actions, "show", f"{module}:show", "show one checkpoint", SHOW, ids=ONE)
    output(show, "json")
    verify = _action(
        actions,
        "verify",
        "trainjob.cli.checkpoints.contents:verify",
        "compare checkpoints with their checksums",
        VERIFY,
        ids=MANY,
    )
    verify.add_argument("--mark", action="store_true", help="mark damaged checkpoints, so that no restart takes them")
    output(verify, "json")
    download = _action(
        actions,
        "download",
        "trainjob.cli.checkpoints.contents:download",
        "download a checkpoint into a folder",
        DOWNLOAD,
        ids=f"{ONE} -o DIR",
    )
    _into(download)
    download.add_argument(
        "--files",
        metavar="PATTERN",
        action="append",
        default=[],
        help="only files whose path or name matches, such as '*.safetensors'; may be given again",
    )
    remove = _action(actions, "rm", "trainjob.cli.checkpoints.removal:remove", "remove checkpoints", REMOVE, ids=SOME)
    remove.add_argument("-y", "--yes", action="store_true", help="do not ask")
    remove.add_argument(
        "--force", action="store_true", help="also the latest of a job that may resume, and the one in use"
    )


def _add_model(commands: Commands) -> None:
    actions = _group(
        commands, "model", "fetch a job's best or latest model", f"Fetch what a job has trained.\n\n{WHERE}"
    )
    get = _action(
        actions, "get", "trainjob.cli.checkpoints.model:get", "download the best checkpoint's files", MODEL_GET
    )
    _into(get)
    which = get.add_mutually_exclusive_group()
    which.add_argument("--best", action="store_true", help="the best; an error if the job has no score attribute")
    which.add_argument("--latest", action="store_true", help="the latest")
    get.add_argument("--metric", metavar="M", help="the best by this reported metric, such as accuracy or val.loss")
    get.add_argument("--mode", choices=("min", "max"), help="whether the lowest or the highest value is the best")
    get.add_argument(
        "--run", metavar="K", type=at_least(1), help="take run K (default: the newest that has checkpoints)"
    )


def _group(commands: Commands, name: str, help: str, description: str) -> Commands:
    parser = commands.add_parser(
        name,
        help=help,
        description=description,
    )
    return parser.add_subparsers(
        title="actions", dest="action", metavar="ACTION", required=True, parser_class=type(parser)
    )


def _action(actions: Commands, name: str, entry: str, help: str, description: str, ids: str | None = None) -> Parser:
    parser = actions.add_parser(
        name,
        help=help,
        description=description,
    )
    parser.set_defaults(entry=entry)
    parser.add_argument(
        "what", metavar="JOB", help="name of the job, or path or s3:// URI of its folder or of a checkpoint"
    )
    if ids is not None:
        parser.usage = f"{parser.prog} JOB {ids} [options]"
        parser.add_argument("ids", metavar="ID", nargs="*", default=[], help=IDS)
        parser.set_defaults(at_most=1 if ids.startswith(ONE) else None)
    where = parser.add_argument_group("which job")
    where.add_argument(
        "--storage",
        metavar="PATH",
        help="storage folder or s3://bucket/folder that holds the job's folder; the job itself may be gone",
    )
    where.add_argument(
        "--local",
        action="store_true",
        help="a job of this machine (the default without these options)",
    )
    where.add_argument(
        "-n", "--namespace", metavar="NS", help="namespace (default: the context's; below a storage folder: default)"
    )
    cluster_access(where)
    return parser


def _into(parser: Parser) -> None:
    parser.add_argument(
        "-o",
        "--output-dir",
        dest="into",
        metavar="DIR",
        required=True,
        help="folder for the files: new, empty, or that of an interrupted download",
    )

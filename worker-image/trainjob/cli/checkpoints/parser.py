"""The grammar of `tj checkpoints` and `tj model`. argparse and nothing else; `parser.py` puts it beside the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainjob.cli.argument_parser import cluster_access, output
from trainjob.cli.argument_types import at_least

if TYPE_CHECKING:
    from trainjob.cli.argument_parser import Commands, Parser

WHERE = """JOB is a job's name, or the path or s3:// URI of its folder (<storage>/<namespace>/<name>) or of one
checkpoint in it. A name is that of a job of this machine; with -n, --cluster, --context or --kubeconfig it is a
cluster's. The job need not be alive."""

DESCRIPTION = f"""Look at the checkpoints of a job, bring them here, remove them.

{WHERE}"""

LIST = """List the committed checkpoints of a job's newest run, oldest first.

Marks: latest (what a restart goes on from), best (by the job's score attribute), in use (what the running attempt
started from), validated, validation open, validation failed, validation timed out (of one that was to be validated),
damaged (readers pass it over), unfinished (no manifest: its upload goes on, or was given up), removing (its removal was
cut off; rm ends it)."""

SHOW = """Show one checkpoint: what was reported with it, what it goes back to, its files with their checksums.
Without ID the latest."""

VERIFY = """Read every file of checkpoints and compare sizes and checksums with their manifests. Without ID all of the
newest run.

Ends with 1 when something is damaged, and names each file. Nothing is written unless --mark is given: then what is
damaged is marked, so that no restart takes it."""

DOWNLOAD = """Bring a checkpoint into a folder, verified. Without ID the latest.

The folder is then a checkpoint of its own, which `tj checkpoints show`, resumeFrom and trainjob.Checkpoint(path)
take. With --files only those come. A download that was cut off goes on when the same command is given
again; a folder that holds anything else is left alone.

Files that your own code has put elsewhere (NO_UPLOAD) are copied from there: they have no checksums to compare with,
all of them come or none, and the folder must be new or empty."""

REMOVE = """Remove checkpoints for good: the manifest first, then the files, so that nobody reads half of one.

Asks on a terminal; elsewhere --yes is needed. Refused without --force: the latest of a job that is not known to be
over, and the one that its running attempt started from."""

MODEL_GET = """Bring the files of a job's best checkpoint here, verified: those that the script saved, without the
library's own.

The best is by the job's score attribute (spec.checkpoint.scoreAttribute, CheckpointConfig), or by --metric and
--mode; the latest where there is none, or with --latest.

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
    listing.add_argument("-a", "--all", action="store_true", help="of all runs, and what is not committed")
    show = _action(actions, "show", f"{module}:show", "show one checkpoint", SHOW, ids=ONE)
    output(show, "json")
    verify = _action(
        actions,
        "verify",
        "trainjob.cli.checkpoints.contents:verify",
        "read checkpoints through and compare them with their manifests",
        VERIFY,
        ids=MANY,
    )
    verify.add_argument("--mark", action="store_true", help="mark what is damaged, so that it is passed over")
    output(verify, "json")
    download = _action(
        actions,
        "download",
        "trainjob.cli.checkpoints.contents:download",
        "bring a checkpoint into a folder",
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
        "--force", action="store_true", help="also the latest of a job that may go on, and the one in use"
    )


def _add_model(commands: Commands) -> None:
    actions = _group(
        commands, "model", "fetch a job's best or latest model", f"Fetch what a job has trained.\n\n{WHERE}"
    )
    get = _action(
        actions, "get", "trainjob.cli.checkpoints.model:get", "bring the best checkpoint's files here", MODEL_GET
    )
    _into(get)
    which = get.add_mutually_exclusive_group()
    which.add_argument("--best", action="store_true", help="the best; an error where nothing says which that is")
    which.add_argument("--latest", action="store_true", help="the latest")
    get.add_argument("--metric", metavar="M", help="the best by this reported metric; a dot reaches into nested ones")
    get.add_argument("--mode", choices=("min", "max"), help="whether its lowest or its highest value is the best")
    get.add_argument("--run", metavar="K", type=at_least(1), help="of run K (default: the newest that has checkpoints)")


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
        help="storage folder or s3://bucket/folder in which the job's folder is, whether its object is there or not",
    )
    where.add_argument(
        "--local",
        action="store_true",
        help="a job of this machine (so it is without any of these options)",
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
        help="folder for the files: a new or empty one, or one of a download that was cut off",
    )

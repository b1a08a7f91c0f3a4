"""`tj run --resume-from`: a job's name, a checkpoint's id or a place becomes the checkpoint that the manifest names."""

from __future__ import annotations

from trainjob.checkpoint.choice import catalogue
from trainjob.checkpoint.errors import StoreError
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.cli.errors import CommandError
from trainjob.cli.local import find
from trainjob.launch import job as jobs
from trainjob.screen.wording import nearest
from trainjob_api.contract import CLI_NOT_FOUND, CLI_USAGE


def resolve(what: str, name: str | None, storage: str | None) -> str:
    """The path or URI of the checkpoint. Raises CommandError.

    With a leading slash, dot or tilde, or with two slashes, it is a place; `1-2-14` is a checkpoint of the job `name`
    itself; anything else is the name of a job of this machine, whose newest checkpoint is meant (`name/1-2-14`: that
    one). `storage` is where the new job stores, and where its own name is looked for.
    """
    if "://" in what or what.startswith(("/", ".", "~")) or what.count("/") > 1:
        return jobs.storage_root(what)
    own, _, id_ = what.rpartition("/")
    if _is_id(id_):
        if not own and name is None:
            raise CommandError(
                f"--resume-from {what} is a checkpoint of the job --name, and there is no --name",
                next_step=f"tj run ... --name NAME --resume-from {what}, or --resume-from NAME/{what}",
                code=CLI_USAGE,
            )
        source, id_ = own or str(name), id_
    else:
        source, id_ = what, ""
    same = name is not None and jobs.job_name(source) == jobs.job_name(name)
    try:
        record = find.named(source, storage if same else None)
    except CommandError as error:
        if error.code != CLI_NOT_FOUND:
            raise
        raise CommandError(
            f"--resume-from {what}: {error}",
            next_step="`tj list` shows this machine's jobs; the path or the s3:// URI of a checkpoint will do too",
            code=CLI_NOT_FOUND,
        ) from None
    if record.folder is None:
        raise CommandError(f"{source} had no storage: its checkpoints are gone", next_step="name another job")
    find.check_stored(record)
    try:
        store = catalogue.open_store(record.folder)
        if id_:
            wanted = CheckpointId.parse(id_)
            if store.size(layout.manifest_key(wanted)) is None:
                near = nearest(id_, [name for name, _ in store.names(layout.CHECKPOINTS) if name != id_])
                raise CommandError(
                    f"{source} has no checkpoint {id_}" + (f"; near it: {', '.join(near)}" if near else ""),
                    next_step=f"`tj checkpoints list {source} --all` shows those that it has",
                    code=CLI_NOT_FOUND,
                )
            return catalogue.checkpoint_uri(store, wanted)
        newest = catalogue.list_checkpoints(store) or catalogue.list_checkpoints(store, _last_with_one(record.folder))
        if newest:
            return catalogue.checkpoint_uri(store, newest[-1].id)
    except StoreError as error:
        raise CommandError(str(error), next_step=f"`tj checkpoints list {source}` shows what is there") from None
    raise CommandError(
        f"{source} has no checkpoint to resume from",
        next_step=f"`tj checkpoints list {source} --all` shows what is there; without --resume-from it starts anew",
        code=CLI_NOT_FOUND,
    )


def _last_with_one(folder: str) -> int | None:
    """The newest run that left a good checkpoint: one that just began has none yet."""
    from trainjob.checkpoint.choice import inventory

    good = inventory.latest(inventory.look(catalogue.open_store(folder)))
    return None if good is None else good.id.run


def _is_id(text: str) -> bool:
    try:
        CheckpointId.parse(text)
    except ValueError:
        return False
    return True

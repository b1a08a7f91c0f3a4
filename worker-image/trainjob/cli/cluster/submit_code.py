"""How the code of a script gets to the pods of `tj submit`: in a ConfigMap, or where that is too small in the job's
storage. Called by `submit.py`.

What travels is `launch.archive`, how pods come to it `launch.carry`. What goes to a bucket is fetched by the agents,
what goes to a folder of the nodes by an init container.
"""

from __future__ import annotations

import argparse
import hashlib
import os
from typing import Any

from trainjob.checkpoint.errors import StoreError
from trainjob.checkpoint.storage_child import code
from trainjob.checkpoint.stores.opening import open_store
from trainjob.cli.cluster import cluster_storage
from trainjob.cli.errors import CommandError
from trainjob.launch import job as jobs
from trainjob.launch.cluster import archive, bucket
from trainjob.launch.handover import carry
from trainjob.screen import wording
from trainjob_api import defaults
from trainjob_api.validation import parse_trainjob

Document = dict[str, Any]

QUICK_S = 8.0
"""How long a bucket is tried before a person is told that it does not answer."""


def with_code(args: argparse.Namespace, document: Document, must: list[str]) -> tuple[Document, Document | None, str]:
    """(the job that finds its code, the ConfigMap that carries it, a sentence about it). `must` travel whatever is
    ignored. Raises CommandError, LaunchError.
    """
    files = archive.collect(os.path.abspath(args.code), must)
    data = archive.pack(files)
    size = f"{wording.count(len(files), 'file')}, {wording.size(len(data))} packed"
    namespace, name = document["metadata"]["namespace"], document["metadata"]["name"]
    if len(data) <= carry.LIMIT_BYTES:
        carried = carry.config_map(namespace, name, "code", {carry.ARCHIVE: data})
        return (
            carry.with_code(document, carried["metadata"]["name"]),
            carried,
            f"{size}, in ConfigMap {carried['metadata']['name']}",
        )
    if jobs.is_s3(args.storage or ""):
        return (
            carry.with_code_stored(document, code.key_of(data)),
            None,
            f"{size}, in {_to_bucket(document, data, size, dry_run=args.dry_run)}",
        )
    shared = _shared_storage(args)
    if shared is None:
        raise CommandError(
            f"the code is too large to travel: {size}, and a ConfigMap takes {wording.size(carry.LIMIT_BYTES)}; "
            f"{archive.largest(files)}",
            next_step=f"leave out what is no code ({archive.IGNORE_FILE}, --code DIR), or put it into the image or "
            "on a volume and give --no-code; "
            "with --storage at s3://, or on a folder of the nodes that this machine mounts too, the code goes there",
        )
    mount, here, inside = shared
    digest = hashlib.sha256(data).hexdigest()[:16]
    rest = f"{namespace}/{name}/code/{digest}.tar.gz"
    if not args.dry_run:
        _leave(os.path.join(here, rest), data)
    return (
        carry.with_code_at(document, f"{inside.rstrip('/')}/{rest}", mount),
        None,
        f"{size}, in {here}/{rest}, which the pods see as {inside.rstrip('/')}/{rest}",
    )


def _to_bucket(document: Document, data: bytes, size: str, *, dry_run: bool) -> str:
    """Leave the archive in the job's folder; its URI. Raises CommandError."""
    job = parse_trainjob(document)
    folder = defaults.job_storage(job) or ""
    try:
        store = open_store(folder, QUICK_S, bucket.environ(job, os.environ))
        if not dry_run:
            code.leave(store, data)
    except StoreError as error:
        s3 = job.spec.checkpoint.s3
        known = cluster_storage.Settings(
            folder, job.metadata.namespace, s3.endpoint_url if s3 else None, s3.credentials_secret if s3 else None
        )
        raise CommandError(
            f"the code is too large for a ConfigMap ({size}), and it cannot be left in the job's storage: {error}",
            next_step=f"{cluster_storage.next_step(error, known)}; or leave out what is no code "
            f"({archive.IGNORE_FILE}, --code DIR)",
        ) from None
    return store.uri(code.key_of(data))


def below(path: str, mount: str) -> str | None:
    """The rest of a path below a mount; None when it is not below it."""
    mount = mount.rstrip("/")
    if path.rstrip("/") == mount:
        return ""
    return path[len(mount) + 1 :] if path.startswith(f"{mount}/") else None


def _shared_storage(args: argparse.Namespace) -> tuple[Document, str, str] | None:
    """(volume mount, the storage's folder here, its path in pods) where the storage is a folder of the nodes that
    this machine has too.
    """
    for number, (source, path) in enumerate(args.volume):
        rest = below(args.storage or "", path)
        if source.startswith("/") and rest is not None and os.path.isdir(source) and os.access(source, os.W_OK):
            return {"name": f"volume-{number}", "mountPath": path}, os.path.join(source, rest).rstrip("/"), args.storage
    return None


def _leave(path: str, data: bytes) -> None:
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        part = f"{path}.{os.getpid()}.part"
        with open(part, "wb") as file:
            file.write(data)
        os.replace(part, path)
    except OSError as error:
        raise CommandError(
            f"the code cannot be written to {path} ({error.strerror})",
            next_step="check the folder's permissions and free space",
        ) from None

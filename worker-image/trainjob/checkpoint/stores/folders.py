"""Folders on a mounted file system, made durable. Used by the path store."""

from __future__ import annotations

import errno
import os

from trainjob.checkpoint import errors
from trainjob.checkpoint.errors import StoreError

GONE = (errno.ENOENT, errno.ENOTDIR)


def make_folder(folder: str) -> None:
    """Make a folder and the ones above it, each made durable in its parent."""
    if os.path.isdir(folder):
        return
    parent = os.path.dirname(folder)
    if parent != folder:
        make_folder(parent)
    try:
        os.mkdir(folder)
    except FileExistsError:
        if os.path.isdir(folder):
            return
        raise StoreError(
            errors.READ_ONLY,
            f"cannot make the folder {folder}: a file of that name is in the way. Move it away (ls -ld {folder}).",
        ) from None
    except OSError as error:
        raise StoreError(*errors.explain(error, "make the folder", folder, writing=True)) from error
    sync_folder(parent)


def sync_folder(folder: str) -> None:
    """Make the names in a folder durable, as far as its file system can."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        if error.errno in (*GONE, errno.EACCES):
            return  # removed meanwhile, or not ours to open: nothing of ours can be made durable in it
        raise StoreError(*errors.explain(error, "sync the folder", folder, writing=True)) from error
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems cannot sync folders; they write names through.
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF, errno.EROFS):
            raise StoreError(*errors.explain(error, "sync the folder", folder, writing=True)) from error
    finally:
        os.close(handle)

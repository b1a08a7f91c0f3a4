"""The sentence for a library that is not installed."""

from __future__ import annotations

from trainjob.session.errors import TrainJobError


class MissingLibraryError(TrainJobError, ImportError):
    """An integration's library is not there; says how to install it."""


def missing(module: str, package: str, error: ImportError) -> ImportError:
    """What to raise when importing `module` failed: `error` itself, if not the library but something in it is
    missing.
    """
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == module.partition(".")[0]:
        return MissingLibraryError(f"{module} is not installed here: pip install '{package}'")
    return error

"""From a command's arguments to a cluster, and from a cluster's refusals to errors of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from trainjob.cli.errors import AGAIN, CommandError
from trainjob.launch.cluster.api import Api, ApiError
from trainjob.launch.errors import ConfigError, LaunchError
from trainjob_api.contract import CLI_ERROR, CLI_NO_ACCESS, CLI_NOT_FOUND, CLI_USAGE


@dataclass(frozen=True)
class Place:
    """A cluster and a namespace in it."""

    api: Api
    namespace: str
    flags: str
    """How later commands name the same place: ` -n team`, or ` --cluster` where it is the usual one."""


def connect(args: argparse.Namespace) -> Place:
    """The cluster and namespace that the arguments name. Raises CommandError."""
    with refusals():
        api = Api.connect(kubeconfig=args.kubeconfig, context=args.context)
    namespace = args.namespace or api.namespace
    given = (
        ("-n", namespace if namespace != api.namespace or args.namespace else None),
        ("--context", args.context),
        ("--kubeconfig", args.kubeconfig),
    )
    return Place(api, namespace, "".join(f" {flag} {value}" for flag, value in given if value) or " --cluster")


@contextmanager
def refusals() -> Iterator[None]:
    """What the cluster says no to becomes a CommandError with its exit code."""
    try:
        yield
    except ApiError as error:
        raise CommandError(str(error), next_step=error.next_step, code=code_of(error)) from None
    except ConfigError as error:
        raise CommandError(str(error), next_step=f"correct that argument, then {AGAIN}", code=CLI_USAGE) from None
    except LaunchError as error:
        raise CommandError(str(error), next_step=f"correct that, then {AGAIN}") from None


def code_of(error: ApiError) -> int:
    """The exit code for a refusal."""
    if error.status in (None, 401, 403):
        return CLI_NO_ACCESS
    return CLI_NOT_FOUND if error.absent else CLI_ERROR

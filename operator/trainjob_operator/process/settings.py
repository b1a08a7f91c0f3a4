"""What an operator process is told: the flags and the environment of `python -m trainjob_operator`, read once.

Called by `__main__.py`; everything behind it gets the frozen `Settings`. A wrong word ends the process with one line
and exit code 2, before anything was done.
"""

from __future__ import annotations

import argparse
import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn
from urllib.parse import urlsplit

from trainjob_api import contract

LOG_FORMATS = ("json", "text")
LOG_LEVELS = ("debug", "info", "warning", "error")
PULL_POLICIES = ("Always", "IfNotPresent", "Never")

ENV_POD_NAME = "POD_NAME"
"""This replica's name."""
ENV_POD_NAMESPACE = "POD_NAMESPACE"
"""The operator's own namespace."""
ENV_POD_IP = "POD_IP"
"""The address at which agents reach this replica."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class BadSettings(Exception):
    """A flag or variable is wrong; the message is one line that names it and what would be right."""


class HelpShown(Exception):
    """`--help` was asked for and printed: nothing else is to be done."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One operator process."""

    namespaces: tuple[str, ...]
    """Where jobs are looked after; empty: everywhere."""
    runtime_image: str
    """The init container's image that brings agent and library into worker pods."""
    runtime_pull_policy: str
    coordinator_port: int
    """Where agents are listened to; 0: any free port."""
    metrics_port: int
    """Port of /metrics, /healthz, /readyz; 0: any free port."""
    log_format: str
    log_level: str
    kubeconfig: str | None
    """None: the pod's service account, else $KUBECONFIG."""
    leader_election: bool
    coordinator_url: str
    """How agents reach the leading operator."""
    service: str
    secret: str
    lease: str
    workers: int
    """Turns that run at once."""
    pod_name: str
    """This replica's name: its identity as a holder of the Lease."""
    pod_namespace: str
    pod_ip: str

    @property
    def listen_host(self) -> str:
        """All addresses of the family that the pod has."""
        return "::" if ":" in self.pod_ip else "0.0.0.0"

    @property
    def dns_names(self) -> tuple[str, ...]:
        """What the coordinator's certificate must hold: the names of its Service, and the host of an overridden URL."""
        full = f"{self.service}.{self.pod_namespace}.svc"
        host = urlsplit(self.coordinator_url).hostname or full
        return tuple(dict.fromkeys((full, f"{full}.cluster.local", host)))


def read_settings(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Raises BadSettings, and HelpShown after `--help`."""
    parsed = parser().parse_args(arguments)
    pod_namespace = _dns_label(
        _variable(environment, ENV_POD_NAMESPACE, "the operator's own namespace"), ENV_POD_NAMESPACE
    )
    port = parsed.coordinator_port or contract.COORDINATOR_PORT
    return Settings(
        namespaces=tuple(dict.fromkeys(parsed.namespace)),
        runtime_image=parsed.runtime_image,
        runtime_pull_policy=parsed.runtime_pull_policy,
        coordinator_port=parsed.coordinator_port,
        metrics_port=parsed.metrics_port,
        log_format=parsed.log_format,
        log_level=parsed.log_level,
        kubeconfig=parsed.kubeconfig,
        leader_election=not parsed.no_leader_election,
        coordinator_url=parsed.coordinator_url or f"https://{parsed.service}.{pod_namespace}.svc:{port}",
        service=parsed.service,
        secret=parsed.secret,
        lease=parsed.lease,
        workers=parsed.workers,
        pod_name=_variable(environment, ENV_POD_NAME, "this replica's name"),
        pod_namespace=pod_namespace,
        pod_ip=_address(_variable(environment, ENV_POD_IP, "the address at which agents reach this replica")),
    )


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line instead of printing its usage."""

    def error(self, message: str) -> NoReturn:
        raise BadSettings(f"{message}; see python -m trainjob_operator --help")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise HelpShown(message or "")


def parser() -> argparse.ArgumentParser:
    """The flags; it raises BadSettings and HelpShown instead of ending the process."""
    made = _Parser(
        prog="python -m trainjob_operator",
        description="The TrainJob operator: looks after TrainJob objects on a Kubernetes cluster.",
        epilog=f"Environment: {ENV_POD_NAME}, {ENV_POD_NAMESPACE}, {ENV_POD_IP}, from the downward API.",
        allow_abbrev=False,
    )
    add = made.add_argument
    add(
        "--namespace",
        action="append",
        default=[],
        type=_label_of("--namespace"),
        metavar="NS",
        help="look after this namespace only; repeat for several",
    )
    add(
        "--runtime-image",
        required=True,
        type=_word("--runtime-image"),
        metavar="IMAGE",
        help="brings agent and library into worker pods",
    )
    add(
        "--runtime-pull-policy",
        default="IfNotPresent",
        choices=PULL_POLICIES,
        help="when the runtime image is pulled; default: IfNotPresent",
    )
    add(
        "--coordinator-port",
        default=contract.COORDINATOR_PORT,
        type=_port,
        metavar="PORT",
        help=f"where agents are listened to; 0: any free one; default: {contract.COORDINATOR_PORT}",
    )
    add(
        "--coordinator-url",
        default=None,
        type=_url,
        metavar="URL",
        help="how agents reach the leader; default: https://<service>.<namespace>.svc:<port>",
    )
    add(
        "--metrics-port",
        default=contract.METRICS_PORT,
        type=_port,
        metavar="PORT",
        help=f"/metrics, /healthz, /readyz; default: {contract.METRICS_PORT}",
    )
    add(
        "--service",
        default=contract.COORDINATOR_SERVICE,
        type=_label_of("--service"),
        metavar="NAME",
        help="the coordinator's selector-less Service",
    )
    add(
        "--secret",
        default=contract.COORDINATOR_SECRET,
        type=_label_of("--secret"),
        metavar="NAME",
        help="the Secret with CA and master key",
    )
    add(
        "--lease",
        default=contract.LEASE_NAME,
        type=_label_of("--lease"),
        metavar="NAME",
        help="the Lease of the leading replica",
    )
    add(
        "--no-leader-election",
        action="store_true",
        help="lead at once: for a single replica that never overlaps with its successor",
    )
    add("--workers", default=4, type=_workers, metavar="N", help="turns that run at once; default: 4")
    add(
        "--kubeconfig",
        default=None,
        type=_word("--kubeconfig"),
        metavar="PATH",
        help="default: the pod's service account, else $KUBECONFIG",
    )
    add("--log-format", default="json", choices=LOG_FORMATS, help="json for machines, text for eyes; default: json")
    add("--log-level", default="info", choices=LOG_LEVELS, help="what is said at least; default: info")
    return made


# --- Single words -----------------------------------------------------------------------------------------------------


def _variable(environment: Mapping[str, str], name: str, what: str) -> str:
    value = environment.get(name, "").strip()
    if not value:
        raise BadSettings(f"{name} is not set: {what}; in a pod it comes from the downward API (the chart sets it)")
    return value


def _dns_label(value: str, name: str) -> str:
    if not _NAME.fullmatch(value):
        raise BadSettings(f"{name}: {value!r} is no Kubernetes name: lower case letters, digits and -, at most 63")
    return value


def _address(value: str) -> str:
    try:
        return str(ipaddress.ip_address(value))
    except ValueError:
        raise BadSettings(f"{ENV_POD_IP}: {value!r} is no IP address") from None


class _label_of:
    """A name of a Kubernetes object, as argparse's `type`."""

    def __init__(self, flag: str) -> None:
        self._flag = flag

    def __call__(self, value: str) -> str:
        return _dns_label(value, self._flag)


class _word:
    """Anything but nothing."""

    def __init__(self, flag: str) -> None:
        self._flag = flag

    def __call__(self, value: str) -> str:
        if not value.strip():
            raise BadSettings(f"{self._flag} is empty")
        return value.strip()


def _port(value: str) -> int:
    if not value.isascii() or not value.isdigit() or int(value) > 65535:
        raise argparse.ArgumentTypeError(f"{value!r} is no port: a number from 0 (any free one) to 65535")
    return int(value)


def _workers(value: str) -> int:
    if not value.isascii() or not value.isdigit() or not 1 <= int(value) <= 256:
        raise argparse.ArgumentTypeError(f"{value!r}: a number from 1 to 256")
    return int(value)


def _url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise argparse.ArgumentTypeError(f"{value!r} is no URL: https://host:port")
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise argparse.ArgumentTypeError(
            f"{value!r} has no usable port: a number from 1 to 65535 behind the host's colon"
        )
    return value.rstrip("/")

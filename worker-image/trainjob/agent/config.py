"""The agent's environment, read once into a frozen value. Called by `__main__`; nothing else reads os.environ.

A variable that is missing or malformed is an installation fault: one sentence per variable, and EXIT_BAD_CONFIG.
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from trainjob_api import contract


class BadConfig(Exception):
    """The environment does not parse; the text names every variable that is wrong."""


class Endpoint(NamedTuple):
    """Where the coordinator listens."""

    secure: bool
    host: str
    port: int
    path: str


class KeptParent(NamedTuple):
    """A warm parent that was there before this agent, and is its child."""

    fd: int
    """Of the socket to it."""
    pid: int


@dataclass(frozen=True)
class JobPart:
    """What the agent acts on of the job's spec."""

    processes: int
    rendezvous_port: int
    storage: Optional[str]
    resume_from: str
    keep: Optional[int]
    score_attribute: Optional[str]
    score_order: str
    strict: bool = False
    on_upload_failure: str = contract.CONTINUE
    workers: int = 1
    prefork: str = contract.PREFORK_DEFAULT
    preload: Optional[Tuple[str, ...]] = None
    recycle: bool = False


@dataclass(frozen=True)
class AgentConfig:
    """Everything the agent was told at its start."""

    namespace: str
    job: str
    job_uid: str
    slot: int
    pod: str
    pod_uid: str
    host: str
    """Under which peers reach this pod."""
    node: str
    coordinator: Endpoint
    coordinator_ca: Optional[str]
    """PEM text: the only authority that may vouch for the coordinator; None: the system's."""
    coordinator_ca_file: Optional[str]
    """The same as it is now: read when the one that is believed is not the coordinator's any more."""
    token_file: Optional[str]
    work_dir: str
    parent_fd: Optional[int]
    any_master_port: bool
    shared_tmp: Optional[str]
    """TMPDIR of all ranks, where all workers are on this machine."""
    machine_ranks: bool
    """Ranks are numbered on the machine, not in this worker."""
    verbose: bool
    """All that ranks print is shown."""
    barrier_warn_s: float
    spec: JobPart
    code: Optional[str]
    """Key of the packed code in the job's folder on storage; None: whatever there is to run is in the image or on a
    volume.
    """
    command: Tuple[str, ...]
    """The user's own."""
    kept_parent: Optional[KeptParent] = None

    @property
    def place(self) -> str:
        """Where this worker is, for people: its node; its own name where all workers are on one machine."""
        return self.pod if self.shared_tmp is not None else self.node or self.pod


def read(environ: Mapping[str, str], arguments: Sequence[str]) -> AgentConfig:
    """The configuration in `environ`, and the command behind `--`. Raises BadConfig."""
    reader = _Reader(environ)
    config = AgentConfig(
        namespace=reader.text(contract.ENV_NAMESPACE),
        job=reader.text(contract.ENV_JOB),
        job_uid=reader.text(contract.ENV_JOB_UID),
        slot=reader.whole(contract.ENV_SLOT, None),
        pod=reader.text(contract.ENV_POD_NAME),
        pod_uid=reader.text(contract.ENV_POD_UID),
        host=reader.text(contract.ENV_POD_ADDRESS),
        node=environ.get(contract.ENV_NODE_NAME, ""),
        coordinator=reader.endpoint(contract.ENV_COORDINATOR),
        coordinator_ca=reader.authority(contract.ENV_COORDINATOR_CA),
        coordinator_ca_file=environ.get(contract.ENV_COORDINATOR_CA_FILE) or None,
        token_file=environ.get(contract.ENV_TOKEN_FILE) or None,
        work_dir=reader.folder(contract.ENV_WORK_DIR),
        parent_fd=reader.whole(contract.ENV_PARENT_FD, -1) if environ.get(contract.ENV_PARENT_FD) else None,
        any_master_port=environ.get(contract.ENV_MASTER_PORT_ANY) == "1",
        shared_tmp=environ.get(contract.ENV_SHARED_TMP) or None,
        machine_ranks=environ.get(contract.ENV_MACHINE_RANKS) == "1",
        verbose=environ.get(contract.ENV_VERBOSE) == "1",
        barrier_warn_s=reader.seconds(contract.ENV_BARRIER_WARN_S, contract.BARRIER_WARN_S),
        spec=reader.spec(contract.ENV_AGENT_SPEC),
        code=environ.get(contract.ENV_CODE) or None,
        command=reader.command(arguments),
        kept_parent=reader.kept_parent(contract.ENV_KEPT_PARENT),
    )
    if reader.problems:
        raise BadConfig(
            "The agent's environment is not usable: "
            + "; ".join(reader.problems)
            + ". The operator (or the launcher) sets it: is it of the same version?"
        )
    return config


class _Reader:
    """Takes variables apart and collects what is wrong with them."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.problems: List[str] = []

    def text(self, name: str) -> str:
        value = self._environ.get(name, "")
        if not value:
            self.problems.append(f"{name} is not set")
        return value

    def folder(self, name: str) -> str:
        value = self.text(name)
        if value and not value.startswith("/"):
            self.problems.append(f"{name}={value!r} is no absolute path")
        return value

    def whole(self, name: str, absent: Optional[int]) -> int:
        value = self._environ.get(name, "" if absent is None else str(absent))
        if value.isdigit():
            return int(value)
        self.problems.append(f"{name}={value!r} is no whole number" if value else f"{name} is not set")
        return 0

    def seconds(self, name: str, absent: float) -> float:
        value = self._environ.get(name, "")
        if not value:
            return absent
        try:
            seconds = float(value)
        except ValueError:
            seconds = 0.0
        if seconds > 0:
            return seconds
        self.problems.append(f"{name}={value!r} is no number of seconds above 0")
        return absent

    def endpoint(self, name: str) -> Endpoint:
        value = self.text(name)
        scheme, found, rest = value.partition("://")
        authority, _, path = rest.partition("/")
        host, _, port = authority.rpartition(":") if not authority.endswith("]") else (authority, "", "")
        if not host:
            host, port = authority, ""
        usable = found and scheme in ("http", "https") and host and (port.isdigit() or not port)
        if not usable:
            if value:
                self.problems.append(f"{name}={value!r} is no URL of the form http://host:port")
            return Endpoint(False, "", 0, "")
        if scheme == "https" and importlib.util.find_spec("_ssl") is None:
            self.problems.append(
                f"{name} is an https URL, but this image's Python was built without TLS (no module ssl): use another "
                "one"
            )
        return Endpoint(
            scheme == "https",
            host.strip("[]"),
            int(port) if port else (443 if scheme == "https" else 80),
            "/" + path if path else "",
        )

    def authority(self, name: str) -> Optional[str]:
        text = self._environ.get(name, "").strip()
        if not text:
            return None
        try:
            import ssl

            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
        except (ImportError, ValueError, OSError) as error:
            self.problems.append(f"{name} is no certificate in PEM form that this Python can read ({error})")
        return text

    def kept_parent(self, name: str) -> Optional[KeptParent]:
        value = self._environ.get(name, "")
        fd, _, pid = value.partition(":")
        if fd.isdigit() and pid.isdigit():
            return KeptParent(int(fd), int(pid))
        if value:
            self.problems.append(f"{name}={value!r} is no descriptor and pid")
        return None

    def command(self, arguments: Sequence[str]) -> Tuple[str, ...]:
        words = tuple(arguments[1:] if arguments[:1] == ["--"] else arguments)
        if not words:
            self.problems.append("no command was given: python -m trainjob.agent -- <command>")
        return words

    def spec(self, name: str) -> JobPart:
        doc: Dict[str, Any] = {}
        try:
            doc = json.loads(self.text(name) or "{}")
            if not isinstance(doc, dict):
                raise ValueError("not an object")
            return JobPart(
                processes=int(doc.get("processes_per_worker") or 1),
                rendezvous_port=int(doc.get("rendezvous_port") or 29500),
                storage=_text(doc, "storage"),
                resume_from=_text(doc, "resume_from") or "auto",
                keep=None if doc.get("keep") is None else int(doc["keep"]),
                score_attribute=_text(doc, "score_attribute"),
                score_order=_text(doc, "score_order") or "max",
                strict=bool(doc.get("strict")),
                on_upload_failure=_text(doc, "on_upload_failure") or contract.CONTINUE,
                workers=int(doc.get("workers") or 1),
                prefork=_text(doc, "prefork") or contract.PREFORK_DEFAULT,
                preload=None if doc.get("preload") is None else tuple(map(str, doc["preload"])),
                recycle=bool(doc.get("recycle")),
            )
        except (ValueError, TypeError) as error:
            self.problems.append(f"{name} is no AgentSpec as JSON ({error})")
            return JobPart(1, 29500, None, "auto", None, None, "max")


def _text(doc: Mapping[str, Any], name: str) -> Optional[str]:
    value = doc.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name} is {value!r}")
    return value or None

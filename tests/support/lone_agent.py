"""The configuration of an agent that is alone with a coordinator made by a test in its own event loop."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from trainjob.agent import config
from trainjob_api import contract


def asking(server: asyncio.Server, work: Path) -> config.AgentConfig:
    """Of one that asks this server, and has its work folder there."""
    host, port = server.sockets[0].getsockname()
    environment = {
        contract.ENV_NAMESPACE: "team",
        contract.ENV_JOB: "digits",
        contract.ENV_JOB_UID: "uid",
        contract.ENV_SLOT: "0",
        contract.ENV_POD_NAME: "digits-0",
        contract.ENV_POD_UID: "pod",
        contract.ENV_POD_ADDRESS: host,
        contract.ENV_COORDINATOR: f"http://{host}:{port}",
        contract.ENV_WORK_DIR: str(work),
        contract.ENV_AGENT_SPEC: json.dumps(
            {"processes_per_worker": 1, "rendezvous_port": 29500, "storage": None, "resume_from": "auto"}
        ),
    }
    return config.read(environment, ["--", "python", "t.py"])

"""`python -m trainjob.agent -- <command>`: reads the environment, runs the agent, ends with its exit code."""

from __future__ import annotations

import os
import sys

if (
    sys.path
    and sys.path[0] == os.getcwd()
    and not os.path.samefile(sys.path[0], os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
):
    # `-m` put the user's folder there: a queue.py in it must not become ours.
    del sys.path[0]

import asyncio

from trainjob.agent.agent import Agent
from trainjob.agent.background import explain, where
from trainjob.agent.config import AgentConfig, BadConfig, read
from trainjob.agent.control import farewell
from trainjob.agent.processes import open_files
from trainjob_api import contract


async def _agent(config: AgentConfig) -> int:
    return await Agent(config).run()


def _run(config: AgentConfig) -> int:
    """To its end. The loop stays as it is then, and goes with the process: to close it (as `asyncio.run` does) is to
    wait for each thread that it has lent out, and one of them may wait for a disk that hangs.
    """
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    return loop.run_until_complete(_agent(config))


def main() -> int:
    """The exit code: 0, or one of contract.EXIT_*."""
    try:
        config = read(os.environ, sys.argv[1:])
        os.makedirs(config.work_dir, exist_ok=True)
    except BadConfig as error:
        print(f"agent | {error}", file=sys.stderr)
        return contract.EXIT_BAD_CONFIG
    except OSError as error:
        print(
            f"agent | The work folder cannot be used: {error}. It must be a volume that this container may write.",
            file=sys.stderr,
        )
        return contract.EXIT_BAD_CONFIG
    refused = open_files.raise_limit()
    if refused is not None:
        print(f"agent | {refused}", file=sys.stderr)
    try:
        return _run(config)
    except Exception as error:  # the agent's last resort: whatever it was, the pod ends with a code of ours
        print(f"agent | {explain(error)}\n{where(error)}", file=sys.stderr)
        if config.parent_fd is None:
            farewell.leave(contract.TERMINATION_LOG, farewell.of_fault(explain(error)))
        return contract.EXIT_INTERNAL


if __name__ == "__main__":
    code = main()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        pass  # nobody reads any more, or the disk under it is full
    # No interpreter teardown: threads may still wait for a storage or a reader that hangs.
    os._exit(code)

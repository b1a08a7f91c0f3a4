"""The tests' own default of spec.runtime.prefork: TRAINJOB_TEST_PREFORK = auto | Always | Never. Without it, the
product's.

It holds for jobs that tests make in their own process and for agents of `support.agent_rig`; not for a `tj` that a test
starts as a process, nor where a test names `prefork` itself.
"""

from __future__ import annotations

import os

from trainjob_api import contract

ENV = "TRAINJOB_TEST_PREFORK"


def apply() -> None:
    """In this process, before the models that have a default are made."""
    wanted = os.environ.get(ENV, contract.PREFORK_DEFAULT)
    known = (contract.PREFORK_AUTO, contract.PREFORK_ALWAYS, contract.PREFORK_NEVER)
    if wanted not in known:
        raise ValueError(f"{ENV} is {wanted!r}: one of {', '.join(known)}")
    contract.PREFORK_DEFAULT = wanted

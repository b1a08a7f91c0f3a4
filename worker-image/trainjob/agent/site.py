"""What the parts of one agent share: its configuration, its output, its children, its storage. Made once by `agent`,
passed down.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Optional

from trainjob.agent.background import OnFault
from trainjob.agent.config import AgentConfig
from trainjob.agent.processes.console import Console
from trainjob.agent.processes.reaper import Reaper
from trainjob.agent.storing.code import JobCode
from trainjob.agent.storing.storage import StorageChild
from trainjob.agent.tracking import Tracking
from trainjob.agent.warm.starter import WarmStarter
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.records.identity import CheckpointId

if TYPE_CHECKING:
    from trainjob.agent.storing.saving import Saving


@dataclass(frozen=True)
class Site:
    """No behaviour."""

    config: AgentConfig
    console: Console
    reaper: Reaper
    storage: Optional[StorageChild]
    """None: the job has no storage, staging is all there is."""
    saving: Saving
    socket_folder: str
    changed: Callable[[bool], None]
    """The state that is reported to the coordinator is another; True: say so at once."""
    progressed: Callable[[], None]
    """Training has come further, and nothing else is another."""
    warn: Callable[[Optional[str]], None]
    """Trouble that does not stop training; None: it is over."""
    starter: WarmStarter
    """Of ranks."""
    code: JobCode
    """What `tj submit` left in the job's storage."""
    tracking: Tracking
    """Of the job's experiment trackers."""
    on_fault: OnFault
    """Work in the background died: what it belongs to (the agent, in an attempt's own Site that attempt) ends."""

    @property
    def return_file(self) -> str:
        """Where rank 0 leaves what its function returned."""
        return os.path.join(self.config.work_dir, "returned")

    def uri(self, checkpoint: CheckpointId) -> Optional[str]:
        """Where a checkpoint is, or will be, on storage."""
        storage = self.config.spec.storage
        return None if storage is None else f"{storage}/{layout.folder(checkpoint)}"

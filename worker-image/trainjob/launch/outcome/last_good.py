"""Of a job whose loss became NaN: the last checkpoint from before, and the command that trains on from it. Said at its
end, by `fit()` too, and by `tj status`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING

from trainjob.launch.outcome import ask_storage
from trainjob_api import nonfinite

if TYPE_CHECKING:
    from trainjob.checkpoint.records.manifest import Manifest
    from trainjob_api.v1alpha1 import NonFinite, TrainJob


def lines(job: TrainJob, storage: str | None, command: str) -> list[str]:
    """Empty for a job whose metrics stayed numbers. `command`: how it was started."""
    seen, attempt = job.status.progress.non_finite, job.status.attempt
    if seen is None or storage is None or attempt is None or attempt.run is None:
        return []
    from trainjob.checkpoint.choice import catalogue

    run = attempt.run
    stored, _ = ask_storage.ask(storage, lambda store: catalogue.list_checkpoints(store, run))
    if stored is None:
        return []
    if not stored:
        return [f"  no checkpoint from before {seen.metric} became {seen.value}: the run has none"]
    good = newest_before(stored, seen)
    if good is None:
        return [f"  no checkpoint from before {seen.metric} became {seen.value} is kept (--keep says how many are)"]
    step = "" if good.note.step is None else f" at step {good.note.step}"
    typed = resuming(command, f"{job.metadata.name}/{good.id}")
    how = f": mend the cause (learning rate, a division by 0), then `{typed}`" if typed else ""
    return [f"  checkpoint {good.id}{step} is the last before {seen.metric} became {seen.value}{how}"]


def newest_before(stored: Iterable[Manifest], seen: NonFinite) -> Manifest | None:
    """Of a run's checkpoints, oldest first; None: the first one is late already."""
    good = None
    for each in stored:
        step = each.note.step
        late = step is not None and seen.step is not None and step >= seen.step
        if late or each.note.position > seen.position or nonfinite.first(each.note.metrics) is not None:
            break
        good = each
    return good


def resuming(command: str, checkpoint: str) -> str | None:
    """The same `tj run`, from that checkpoint; None for what is no `tj run`."""
    words = shlex.split(command)
    if words[:2] != ["tj", "run"]:
        return None
    end = words.index("--") if "--" in words else len(words)
    own = words[:end]
    if "--resume-from" in own:
        at = own.index("--resume-from")
        del own[at : at + 2]
    own = [word for word in own if not word.startswith("--resume-from=") and word != "--fresh"]
    return shlex.join([*own, "--resume-from", checkpoint, *words[end:]])

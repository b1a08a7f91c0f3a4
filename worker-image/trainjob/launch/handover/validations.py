"""Rank 0's queue of checkpoints to validate: waits until each is on storage, has `launch.validation.child` measure it,
and writes what came out beside the run's claim.

Made by `worker`. A thread of rank 0, and one process at a time; both end with the rank. What was not over then is taken
up by the next attempt; one that validates nothing gives it up with a word (`give_up`). A storage that refuses the
record of a wish, or of an end, fails neither the training nor the others: an end that cannot be written is told to
rank 0's agent alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainjob.checkpoint.errors import StoreError
from trainjob.checkpoint.reading import stored, validations
from trainjob.checkpoint.reading.validations import Validation
from trainjob.checkpoint.records import layout
from trainjob.checkpoint.records.identity import CheckpointId
from trainjob.checkpoint.stores.opening import open_store
from trainjob.checkpoint.stores.store import Store
from trainjob.launch.handover.validation import ValidationConfig
from trainjob.session import errors
from trainjob.session.link import link
from trainjob_api import contract, nonfinite
from trainjob_api.rank_messages import Validated

LOOK_AGAIN_S = (0.5, 5.0)
"""After what time a checkpoint that is not on storage yet is looked for again: at first, and at last."""
STORED_S = 600.0
"""So long a checkpoint may take to reach storage."""
TRY_AGAIN_S = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Pauses between the tries to write how a validation ended."""
_NOT_ITS_OWN = (
    *contract.RANK_PLACE,
    *contract.JAX_PLACE,
    contract.ENV_AGENT_STORE,
    contract.ENV_AGENT_SOCKET,
    contract.ENV_RANK_PID,
    contract.ENV_IN_PROCESS,
)
"""The process is no rank."""


class Validations:
    """`begin` is called in rank 0 after a report(); `finish` once the training function has returned."""

    def __init__(
        self,
        payload_path: str,
        config: ValidationConfig,
        storage: str | Store,
        run: int,
        tell: Callable[[Validated], None] = lambda word: link().post(word),
        pauses_s: Sequence[float] = TRY_AGAIN_S,
    ) -> None:
        self._payload = payload_path
        self._config = config
        self._store = open_store(storage) if isinstance(storage, str) else storage
        self._tell = tell
        self._pauses_s = pauses_s
        self._run = run
        self._queue: queue.SimpleQueue[tuple[CheckpointId, dict[str, Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="trainjob-validation", daemon=True)

    def start(self) -> None:
        """Take up what an attempt before left."""
        for id_, found in sorted(validations.read(self._store, self._run).items()):
            if found.status == validations.PENDING:
                self._enqueue(id_, dict(found.task))
        self._thread.start()

    def begin(self, checkpoint: str, asked: Any) -> None:
        """A checkpoint was reported. `asked`: True, or a ValidationTaskConfig."""
        task = dict(_task(self._config.task_config))
        own = {} if asked is True else _task(asked)
        task["fn_kwargs"] = {**task["fn_kwargs"], **own.get("fn_kwargs", {})}
        task["timeout_s"] = own.get("timeout_s") or task["timeout_s"]
        id_ = CheckpointId.parse(checkpoint)
        try:
            validations.write(self._store, id_, Validation(validations.PENDING, {}, task))
        except (StoreError, OSError) as error:
            _say(f"that checkpoint {id_} is to be validated cannot be written, so a restart forgets it: {error}")
        self._enqueue(id_, task)

    def finish(self) -> None:
        """Wait for all of them."""
        self._queue.put(None)
        self._thread.join()

    def _enqueue(self, id_: CheckpointId, task: dict[str, Any]) -> None:
        self._tell(Validated(str(id_), over=False))
        self._queue.put((id_, task))

    def _work(self) -> None:
        while (given := self._queue.get()) is not None:
            id_, task = given
            try:
                found = self._validated(id_, task)
            except Exception as error:  # whatever it is: those behind it are to be validated
                found = Validation(validations.FAILED, {}, task)
                _say(f"the validation of checkpoint {id_} failed: {type(error).__name__}: {error}")
            try:
                self._write_end(id_, found)
            except Exception as error:  # the same
                _say(f"how the validation of checkpoint {id_} ended is not known: {type(error).__name__}: {error}")
            try:
                self._tell(Validated(str(id_), over=True))
            except errors.AgentLostError:
                return  # and this rank ends

    def _write_end(self, id_: CheckpointId, found: Validation) -> None:
        for pause in (*self._pauses_s, None):
            try:
                validations.end(self._store, id_, found)
                return
            except (StoreError, OSError) as error:
                if pause is None:
                    what = f"checkpoint {id_} ({found.status}, {dict(found.metrics)})"
                    _say(f"how the validation of {what} ended cannot be written, so it counts as failed: {error}")
                    return
                time.sleep(pause)

    def _validated(self, id_: CheckpointId, task: Mapping[str, Any]) -> Validation:
        deadline, pause = time.monotonic() + STORED_S, LOOK_AGAIN_S[0]
        while not self._stored(id_):
            if stored.passed_over(self._store, id_) and not self._stored(id_):
                why = "it was dropped or removed, and a later one is on storage"
            elif time.monotonic() > deadline:
                why = f"it did not reach storage within {STORED_S:.0f} s"
            else:
                time.sleep(pause)
                pause = min(2 * pause, LOOK_AGAIN_S[1])
                continue
            _say(f"checkpoint {id_} is not validated: {why}")
            return Validation(validations.FAILED, {}, task)
        with tempfile.TemporaryDirectory() as folder:
            result = os.path.join(folder, "metrics.json")
            words = [sys.executable, "-P", "-m", "trainjob.launch.validation.child", self._payload]
            words += [self._store.uri(layout.folder(id_)), result, json.dumps(task["fn_kwargs"])]
            try:
                ended = subprocess.run(words, env=self._environment(), timeout=task["timeout_s"], check=False)
            except subprocess.TimeoutExpired:
                _say(f"the validation of checkpoint {id_} took longer than its {task['timeout_s']:g} s and was ended")
                return Validation(validations.TIMEOUT, {}, task)
            if ended.returncode or not os.path.exists(result):
                _say(
                    f"the validation of checkpoint {id_} failed (exit code {ended.returncode}); the training continues"
                )
                return Validation(validations.FAILED, {}, task)
            with open(result, encoding="utf-8") as file:
                return Validation(validations.VALIDATED, nonfinite.numbers(json.load(file)), task)

    def _stored(self, id_: CheckpointId) -> bool:
        return self._store.size(layout.manifest_key(id_)) is not None

    def _environment(self) -> dict[str, str]:
        found = {name: value for name, value in os.environ.items() if name not in _NOT_ITS_OWN}
        if not self._config.ray_remote_kwargs.get("num_gpus"):
            found["CUDA_VISIBLE_DEVICES"] = ""
        return found


def give_up(storage: str | Store, run: int, tell: Callable[[Validated], None] = lambda word: link().post(word)) -> None:
    """In rank 0 of an attempt that validates nothing: what earlier attempts of the run left to be validated counts as
    failed, for those who wait for it and for retention. Never raises.
    """
    try:
        store = open_store(storage) if isinstance(storage, str) else storage
        for id_ in validations.given_up(store, run):
            _say(
                f"checkpoint {id_} was to be validated, and its attempt ended before that. This attempt has no "
                "validation_config, so it counts as failed"
            )
            tell(Validated(str(id_), over=True))
    except (StoreError, OSError, errors.AgentLostError) as error:
        _say(f"what earlier attempts left to be validated cannot be given up: {error}")


def _task(config: Any) -> dict[str, Any]:
    return {"fn_kwargs": dict(config.fn_kwargs or {}), "timeout_s": config.timeout_s}


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody reads it, or the script has closed it
        print(text, file=sys.stderr, flush=True)

"""Finds the parent that is kept, has agents started of it, renews it at a job's end or puts another in its place.

Made by `backend` for one job of `tj run`; `kubelet` takes. Whatever is in the way costs a word and a cold start.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable

from trainjob.agent.warm.script import folder_of
from trainjob.launch.local import lock
from trainjob.launch.local.kept import likeness, line, making, note
from trainjob.launch.local.kept.child import KeptChild
from trainjob.launch.local.kept.door import Door
from trainjob.launch.local.kept.likeness import Wish
from trainjob.launch.local.kept.note import Note
from trainjob.launch.local.process import Launch
from trainjob_api import contract, module_names
from trainjob_api.v1alpha1 import TrainJob
from trainjob_api.warm_messages import Done, Keep, Leave, Stay


class Keeper:
    """Of one job."""

    def __init__(self, job: TrainJob, say: Callable[[str], None]) -> None:
        """`say`: why a start is cold; called from other threads."""
        self._runtime = job.spec.runtime
        self.say = say
        self._told = False
        self._silent = ""
        """The one that has not answered: nobody waits for it again."""
        self._launches: list[Launch] = []
        self._takings = line.Takings()

    def take(self, launch: Launch, output: int) -> KeptChild | None:
        """An agent of the parent that is kept; None: it is to be started as ever. Blocks while that one imports.
        `output`: the agent's, closed by this.
        """
        self._launches.append(launch)
        taking = self._takings.of(launch)
        kept = None
        try:
            kept = note.find()
            if kept is not None and kept.id == self._silent:
                return None
            why = note.why_gone() if kept is None else likeness.why_not(kept, Wish.of(launch, self._runtime))
            if kept is not None and why is None:
                return taking.taken(note.door(kept), line.patience(kept.age_s), launch, output)
        except (ConnectionError, FileNotFoundError):
            why = note.last_word()
        except OSError as error:
            if isinstance(error, line.NoAnswer) and kept is not None:
                self._silent = kept.id
            why = str(error)
        except Exception as error:  # the job must not wait for a start that nobody makes
            why = f"{type(error).__name__}: {error}"
        finally:
            os.close(output)
        if why is not None and not self._told and not taking.given_up:
            # Once: other workers would say the same.
            self._told = True
            self.say(f"this start is cold, though a process was kept warm: {why}")
        return None

    def give_up(self, launch: Launch) -> None:
        """As `Kept` says."""
        self._takings.of(launch).give_up()

    def keep(self, seconds: float) -> str:
        """Have one for the next job of this kind, for so long; what to say of that. Called while the pods' folders are
        there. Never raises.
        """
        try:
            why = self._kept(seconds)
        except OSError as error:
            why = str(error)
        except Exception as error:  # the job has its end, and its result
            why = f"{type(error).__name__}: {error}"
        if why is not None:
            return f"nothing is kept warm: {why}"
        until = time.strftime("%H:%M", time.localtime(time.time() + seconds))
        return f"a warm process stays for the next `tj run` in this folder until {until}; `tj stop --warm` ends it"

    def _kept(self, seconds: float) -> str | None:
        """None: it is there; else why not."""
        if not sys.platform.startswith("linux"):
            return "it needs Linux"
        if not self._launches:
            return "no worker was started"
        wish = Wish.of(self._launches[-1], self._runtime)
        why = wish.why_not_kept()
        if why is not None:
            return why
        folder = note.folder(make=True)
        with note.locked(folder):
            old, learned = note.find(), self._learned(wish)
            is_silent = old is not None and old.id == self._silent
            fits = old is not None and not is_silent and likeness.why_not(old, wish) is None
            if old is not None and fits and not learned and _stays(old, seconds):
                return None
            if old is not None:
                # Of one that was of no use the job has learned everything itself.
                learned = (*old.learned, *learned) if learned and fits and old.script == wish.script else learned
                _end(old, hears=not is_silent)
            _begin(folder, wish, seconds, learned)
        return None

    def _learned(self, wish: Wish) -> tuple[str, ...]:
        """What the script has imported beyond what was imported ahead."""
        for launch in self._launches:
            path = os.path.join(launch.environment.get(contract.ENV_WORK_DIR, ""), contract.IMPORTED)
            found = module_names.listed(path)
            if found and wish.reading.may_learn():
                return tuple(found)
        return ()


def end() -> Note | None:
    """End the one that is kept; jobs that were started of it go on. None: there is none. Raises OSError."""
    if note.find() is None:
        return None
    with note.locked(note.folder()):
        kept = note.find()
        if kept is not None:
            _end(kept)
        return kept


def _begin(folder: str, wish: Wish, seconds: float, learned: tuple[str, ...]) -> None:
    plan, id_, salt = wish.reading.plan(), secrets.token_hex(8), secrets.token_hex(16)
    path, name = os.path.join(folder, note.LEARNED), note.socket_of(id_)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(learned, file)
    _sweep(folder)
    until = making.now() + seconds
    keep = Keep(
        id=id_,
        socket=os.path.join(folder, name),
        until=until,
        modules=plan.modules,
        folder=folder_of(wish.words, wish.working_dir),
        optional=plan.optional,
        learned=path if learned else "",
    )
    process, door = making.start(keep, wish.environ, wish.working_dir, os.path.join(folder, note.LOG))
    try:
        new = Note(
            id=id_,
            pid=process.pid,
            born=lock.started(process.pid),
            until=time.time() + seconds,
            working_dir=wish.working_dir,
            script=wish.script,
            modules=plan.modules,
            learned=learned,
            imports=wish.reading.imports(),
            place=likeness.place(wish.working_dir),
            salt=salt,
            environ=likeness.hashed(wish.environ, salt),
        )
        note.write(new)
        line.tell(door, Stay(until))
    except BaseException:
        # Nobody would find it.
        making.kill(process, door)
        raise
    process.returncode = 0  # it outlives this one, which does not wait for it


def _sweep(folder: str) -> None:
    """Sockets of those that were killed."""
    for name in os.listdir(folder):
        if name.endswith(note.socket_of("")):
            Door(folder, name).remove()


def _stays(kept: Note, seconds: float) -> bool:
    word = Stay(making.now() + seconds)
    try:
        if line.may_import(kept.age_s):
            line.tell(note.door(kept), word)
        elif not isinstance(line.ask(note.door(kept), word), Done):
            return False
    except OSError:
        return False
    note.write(dataclasses.replace(kept, until=time.time() + seconds))
    return True


def _end(kept: Note, *, hears: bool = True) -> None:
    """`hears`: it is not known to be silent."""
    try:
        if not hears:
            raise line.NoAnswer
        line.ask(note.door(kept), Leave(), line.LEAVE_S)
    except OSError:
        # It imports, or is out of order: nothing that it holds is needed.
        _kill(kept)
        note.door(kept).remove()
    note.forget()


def _kill(kept: Note) -> None:
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(kept.pid)
        try:
            if kept.lives:  # it, and no other that has its number by now
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)

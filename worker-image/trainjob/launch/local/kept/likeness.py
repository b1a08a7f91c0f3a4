"""Which jobs a kept parent is for: what a process has by its birth, or has read in its environment, must be the job's.

What each rank has of its own anyway is left out (`rank_command.PLACE`, the job's names), and what shells and terminals
set for themselves. Of values only hashes are kept: there may be secrets among them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import resource
import sys
from collections.abc import Mapping, Sequence

from trainjob.agent.processes import accelerators, memory, rank_command
from trainjob.agent.warm import choice
from trainjob.agent.warm.reading import Reading
from trainjob.launch.local.kept.note import Note
from trainjob.launch.local.process import Launch
from trainjob_api import command
from trainjob_api.v1alpha1 import Runtime

_OF_NO_LIBRARY = re.compile(
    r"(?:TRAINJOB|PET|TORCHELASTIC|SSH|TMUX|TERM|KONSOLE|ITERM|VTE|XDG_SESSION)_\w*"
    r"|_|SHLVL|PWD|OLDPWD|COLUMNS|LINES|STY|TMUX|WINDOWID|GPG_TTY|XDG_SEAT|XDG_VTNR|INVOCATION_ID|JOURNAL_STREAM"
)
_OF_ONE_POD = re.compile(r"TRAINJOB_\w*")
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
_STATUS = re.compile(
    r"^(SigBlk|SigIgn|Cap(?:Inh|Prm|Eff|Bnd|Amb)|NoNewPrivs|Seccomp|Seccomp_filters|Mems_allowed_list):\s*(.*)$", re.M
)
_WORDS = {
    "SigBlk": "the set of signals that wait",
    "SigIgn": "the set of signals that are ignored (nohup)",
    "Mems_allowed_list": "the set of memory nodes",
}
_LIMITS = tuple(name for name in dir(resource) if name.startswith("RLIMIT_"))


class Wish:
    """What a job wants of one."""

    def __init__(
        self,
        words: Sequence[str],
        pod: Mapping[str, str],
        working_dir: str,
        prefork: str,
        preload: Sequence[str] | None,
    ) -> None:
        """`words`: the user's command; `pod`: the environment of a worker; the others as in spec.runtime."""
        self.words, self.working_dir = words, working_dir
        self.reading = Reading(words, working_dir, prefork, preload)
        self._pod, self._prefork = pod, prefork

    @classmethod
    def of(cls, launch: Launch, runtime: Runtime) -> Wish:
        """Of the job whose worker is started so."""
        words = list(launch.words)
        words = words[words.index("--") + 1 :]
        return cls(words, launch.environment, launch.working_dir, runtime.prefork, runtime.preload)

    @property
    def environ(self) -> dict[str, str]:
        """Of a parent for the ranks of such a worker, in any job: what is true of no rank alone."""
        return self._without(_OF_NO_LIBRARY, 1)

    def environ_of_job(self, processes: int) -> dict[str, str]:
        """Of one for all workers of this job, which have so many ranks each."""
        return self._without(_OF_ONE_POD, processes)

    def _without(self, names: re.Pattern[str], processes: int) -> dict[str, str]:
        every = rank_command.environment_of_all(self._pod, self.words, processes)
        return {
            name: value for name, value in every.items() if name not in rank_command.PLACE and not names.fullmatch(name)
        }

    @property
    def script(self) -> str:
        """The file, or the name of the module."""
        parsed = command.parse_python(self.words)
        return "" if parsed is None else os.path.join(self.working_dir, parsed.target)

    @property
    def flags(self) -> Sequence[str]:
        """Of its Python."""
        parsed = command.parse_python(self.words)
        return () if parsed is None else parsed.flags

    def why_not_kept(self) -> str | None:
        """Why none that was there before the job is of use to it, nor one for the next job; None: one would be."""
        return f"its Python has flags ({' '.join(self.flags)})" if self.flags else self.why_none()

    def why_none(self) -> str | None:
        """Why none is of use to it, not even one that is begun for it; None: one would be."""
        untried = accelerators.untried(accelerators.names(), self._pod)
        why = choice.why_not(self._prefork, self.words, choice.Place(untried, memory.room())) or self._why_no_command()
        why = why or self.reading.doubt()
        return why if why is not None or self.reading.plan().modules else "the script does not import torch"

    def _why_no_command(self) -> str | None:
        try:
            python = os.path.abspath(rank_command.argv(self.words)[0])
        except rank_command.CannotRun as error:
            return str(error)
        return None if python == os.path.abspath(sys.executable) else f"its Python is another than {sys.executable}"


def why_not(kept: Note, wish: Wish) -> str | None:
    """Why that one is not for this job; None: it is."""
    why = wish.why_not_kept()
    if why is not None:
        return why
    place_of = _other(kept.place, place(wish.working_dir))
    variable = _other(kept.environ, hashed(wish.environ, kept.salt))
    if place_of is not None or variable is not None:
        return f"{place_of} is another" if place_of is not None else f"variable {variable} is another"
    modules = wish.reading.plan().modules
    missing = [name for name in modules if name not in kept.modules]
    more = [name for name in kept.modules if name not in (*modules, *choice.AUTO)]
    if missing or more:
        return f"it has not imported {missing[0]}" if missing else f"it has imported {more[0]}"
    if kept.learned and kept.script != wish.script:
        return f"it has imported what {kept.script} needs"
    imports = wish.reading.imports() if kept.learned else ()
    left_out = [name for name in kept.imports if name not in imports]
    if kept.learned and left_out:
        return f"the script does not import {left_out[0]} any more"
    if kept.learned and not wish.reading.may_learn():
        return "the script sets variables, which a package that is imported ahead may have read"
    return None


def hashed(environ: Mapping[str, str], salt: str) -> dict[str, str]:
    """Values that can be compared, and not read."""
    return {name: hashlib.sha256(os.fsencode(salt + value)).hexdigest()[:16] for name, value in environ.items()}


def place(working_dir: str) -> dict[str, str]:
    """Of this process, whose child a parent would be: what a fork cannot change, by the words for it."""
    found = {
        "the interpreter": f"{sys.executable} {sys.version} {_file(sys.executable)}",
        "the working folder": f"{working_dir} {_file(working_dir)}",
        "the user or a group": f"{os.getresuid()} {os.getresgid()} {sorted(os.getgroups())}",
        "a limit (ulimit)": str([resource.getrlimit(getattr(resource, name)) for name in _LIMITS]),
        "the priority (nice)": str(os.nice(0)),
        "the control group": _text("/proc/self/cgroup"),
        "the root folder": _file("/"),
        "the memory policy (numactl)": _policy(),
        "the score for ends for lack of memory (choom)": _text("/proc/self/oom_score_adj"),
        "the personality (setarch)": _text("/proc/self/personality"),
    }
    for field, value in _STATUS.findall(_text("/proc/self/status")):
        found[_WORDS.get(field, f"what it may do ({field})")] = value
    if hasattr(os, "sched_getscheduler"):
        found["the scheduling policy (chrt)"] = f"{os.sched_getscheduler(0)} {os.sched_getparam(0).sched_priority}"
    if hasattr(os, "sched_getaffinity"):
        found["the set of processors (taskset)"] = str(sorted(os.sched_getaffinity(0)))
    for name in _NAMESPACES:
        with contextlib.suppress(OSError):
            found[f"the {name} namespace"] = os.readlink(f"/proc/self/ns/{name}")
    return found


def _other(kept: Mapping[str, str], job: Mapping[str, str]) -> str | None:
    """What is not the same in both: the first by its name."""
    return next((name for name in sorted({*kept, *job}) if kept.get(name) != job.get(name)), None)


def _file(path: str) -> str:
    found = os.stat(path)
    return f"{found.st_dev}:{found.st_ino}"


def _policy() -> str:
    """`default` for all memory, else where it is to lie; of a kernel without NUMA nothing."""
    try:
        with open("/proc/self/numa_maps", encoding="utf-8", errors="replace") as file:
            return " ".join(file.readline().split()[1:2])  # of the rest each line takes its time
    except OSError:
        return ""


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""

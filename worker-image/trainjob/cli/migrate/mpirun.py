"""The command line of an MPIJob's launcher, read as Open MPI 4's mpirun reads it. Pure.

Called by `jobs`. What cannot be said for sure is refused: that a job starts other ranks than before, or another
program, nobody would notice.
"""

from __future__ import annotations

import re
import shlex

from trainjob_api.command import MPI_LAUNCHERS

_SHELLS = ("sh", "bash", "dash", "ash", "ksh", "zsh")
_QUOTED = re.compile(r"'[^']*'|\"(?:[^\"\\$`]|\\.)*\"|\\.")
_OF_THE_SHELL = re.compile(r"[;&|<>$`\n*?\[\]{}~#()!]")
"""What a shell does more with than to part words, where it is not quoted."""
_PLACES = {
    **dict.fromkeys(("n", "np", "c", "N", "npernode", "npersocket", "H", "host", "hostfile", "machinefile"), 1),
    **dict.fromkeys(("default-hostfile", "rf", "rankfile", "max-vm-size"), 1),
    **dict.fromkeys(("pernode", "persocket", "nolocal", "allow-run-as-root"), 0),
}
"""Options that say how many ranks there are and where, or what is so anyway, and how many words follow."""
_TAKE = {
    **dict.fromkeys(("x", "am", "tune", "bind-to", "map-by", "rank-by", "ppr", "wd", "wdir", "path", "prefix"), 1),
    **dict.fromkeys(("cf", "cartofile", "cpu-list", "cpu-set", "cpus-per-proc", "cpus-per-rank", "timeout"), 1),
    **dict.fromkeys(("debugger", "hnp", "launch-agent", "max-restarts", "ompi-server", "output-filename"), 1),
    **dict.fromkeys(("personality", "preload-files", "report-events", "report-pid", "report-uri", "stdin"), 1),
    **dict.fromkeys(("xml-file", "xterm"), 1),
    **dict.fromkeys(("mca", "gmca"), 2),
}
"""Its other options with words behind them, by `mpirun --help full` of 4.1.4."""


class NotPlain(Exception):
    """What the line is instead of one mpirun of one program."""


def line_of(words: list[str]) -> list[str]:
    """The words from mpirun on, without a shell around it. Raises NotPlain."""
    line = words
    if len(words) == 3 and _name(words[0]) in _SHELLS and re.fullmatch(r"-[a-z]*c", words[1]):
        line = _split(words[2].replace("\\\n", " ").strip())
        if line[:1] == ["exec"]:
            del line[0]
    if not line or _name(line[0]) not in MPI_LAUNCHERS:
        raise NotPlain("no plain `mpirun ...`")
    return line


def without_places(line: list[str]) -> tuple[list[str], list[str]]:
    """The line without the options of before its program that a job decides, and these. Raises NotPlain."""
    kept, at = line[:1], 1
    left_out: list[str] = []
    while at < len(line) and line[at].startswith("-") and line[at] != "--":
        name = line[at].lstrip("-")
        if "=" in name:
            raise NotPlain(f"an mpirun with {line[at]}, which Open MPI 4 does not know: the value is a word of its own")
        if name in ("app", "h", "help", "V", "version"):
            raise NotPlain(f"an mpirun with {line[at]}, which names no program")
        end = at + 1 + _PLACES.get(name, _TAKE.get(name, 0))
        (left_out if name in _PLACES else kept).extend(line[at:end])
        at = end
    if not line[at:] or line[at:] == ["--"]:
        raise NotPlain("an mpirun that names no program")
    if ":" in line[at:]:
        raise NotPlain("an mpirun of several programs (`:` between them), and all ranks of a job run the same one")
    return [*kept, *line[at:]], left_out


def _split(text: str) -> list[str]:
    if _OF_THE_SHELL.search(_QUOTED.sub("", text)):
        raise NotPlain("no plain `mpirun ...`: the shell has more to do there than to start it")
    try:
        return shlex.split(text)
    except ValueError:
        raise NotPlain("no plain `mpirun ...`: a quote is not closed") from None


def _name(word: str) -> str:
    return word.rpartition("/")[2]

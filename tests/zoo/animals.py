"""What lives in the zoo: each loop, how it is started, and what it is struck with."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from trainjob_api import contract

TORCHRUN = str(Path(sys.executable).with_name("torchrun"))


class Strike(Enum):
    """What happens to a job at STRIKE_STEP."""

    KILL_0 = "SIGKILL of rank 0"
    KILL_1 = "SIGKILL of rank 1"
    RAISE_1 = "an exception in rank 1"
    AGENT_0 = "SIGKILL of rank 0's agent"
    AGENT_1 = "SIGKILL of rank 1's agent"
    STOP = "SIGTERM to the job, then the same command again"
    AGAIN = "the same command again after success"
    FULL = "the disk that checkpoints are stored on is full, for a while"
    WORK_FULL = "the disk that ranks and agents work on is full, until a failure of it is told"


S = Strike
RANKS = (S.KILL_1, S.KILL_0, S.RAISE_1)
AGENTS = (S.AGENT_0, S.AGENT_1)
BUT_NO_ROOM = (*RANKS, *AGENTS, S.STOP, S.AGAIN, S.FULL)
ALL = (*BUT_NO_ROOM, S.WORK_FULL)


@dataclass(frozen=True, kw_only=True)
class Animal:
    """A loop."""

    name: str
    what: str
    command: tuple[str, ...] = ()
    """Started in a folder that has all loops; the default is `python <name>.py`."""
    first: Strike = S.KILL_1
    """What it meets in `make test`; everything else in `make zoo`."""
    strikes: tuple[Strike, ...] = ALL
    causes: Mapping[Strike, str] = field(default_factory=dict)
    """Reasons that differ from the usual ones."""
    step: int = 5
    """When it is struck."""
    steps: int = 8
    """That it trains for."""
    in_zoo_alone: bool = False
    """Not in `make test`: a model of torch, 10 s of a core each, or a loop as nobody should write it."""
    of_torch: bool = False
    """What it trains is a model of torch; an undisturbed run says what that comes to."""
    refused: str | None = None
    """We do not run this loop; the failure says why, with these words."""


def python(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, *arguments)


def of_shell(text: str, *, shell: tuple[str, ...] = ("bash", "-c")) -> tuple[str, ...]:
    return (*shell, text)


# What a shell, or a parent, says of a process that a signal ended: 128 + n.
BY_EXIT_CODE = {S.KILL_0: contract.REASON_EXIT, S.KILL_1: contract.REASON_EXIT}

# And what is known of it when the shell makes a 0 of that: it went without a farewell.
WITHOUT_A_FAREWELL = {S.KILL_0: contract.REASON_SIGNAL, S.KILL_1: contract.REASON_SIGNAL}

ANIMALS = (
    Animal(name="plain", what="everything at the top, a dict each step", first=S.STOP),
    Animal(
        name="argparse_main", what="argparse, main, guard, TemporaryDirectory; rank 0 alone has files", first=S.KILL_0
    ),
    Animal(
        name="bash_wrapper",
        what="bash -c '...; python train.py; ...': the shell goes on whatever happened",
        command=of_shell('echo preparing; "$PYTHON" argparse_main.py; echo "done with $?"'),
        causes=WITHOUT_A_FAREWELL,
    ),
    Animal(
        name="bash_exec",
        what="bash -c 'cd ... && exec python train.py'",
        command=of_shell('export LEARNING_RATE=0.05 && cd . && exec "$PYTHON" argparse_main.py --every 1'),
        first=S.AGENT_1,
    ),
    Animal(
        name="sh_e_script",
        what="sh -e prepare.sh with a trap, and something behind the training",
        command=("sh", "-e", "prepare.sh"),
        causes=BY_EXIT_CODE,
    ),
    Animal(
        name="pipe_to_tee",
        what="python train.py 2>&1 | tee log, with pipefail",
        command=of_shell('set -o pipefail; "$PYTHON" plain.py 2>&1 | tee "log-$RANK.txt"'),
        causes=BY_EXIT_CODE,
        first=S.RAISE_1,
    ),
    Animal(
        name="hydra_like",
        what="overrides, a run folder by date, os.chdir, logging to files",
        command=python("hydra_like.py", "train.save_every=1"),
    ),
    Animal(
        name="sigterm_flag", what="a SIGTERM handler that sets a flag; leaves with 0 after the next save", first=S.STOP
    ),
    Animal(name="sigterm_raises", what="a SIGTERM handler that raises SystemExit(143)", first=S.STOP),
    Animal(name="sigterm_deaf", what="ignores SIGTERM, SIGINT and SIGCHLD, and forks", first=S.STOP),
    Animal(name="sigalrm_watchdog", what="SIGALRM raises, an interval timer strikes in the middle of calls"),
    Animal(name="atexit_hooks", what="hooks at exit, one broken; a thread that must be told to end", first=S.RAISE_1),
    Animal(name="threads_everywhere", what="trains in an executor's thread; daemon threads", first=S.RAISE_1),
    Animal(name="pools", what="a forked pool that is never closed", first=S.KILL_0),
    Animal(
        name="spawned_executor",
        what="spawned processes; locks with names in /dev/shm",
    ),
    Animal(name="service_helper", what="a service in a session of its own that ignores SIGTERM", first=S.AGENT_0),
    Animal(name="daemonised", what="a monitor forked twice, with no descriptors left", first=S.AGENT_1),
    Animal(name="saves_where_it_loaded", what="writes into the folder its checkpoint came in"),
    Animal(
        name="opens_in_place", what="asks for the newest checkpoint each step and updates it in place", first=S.STOP
    ),
    Animal(
        name="replaces_atomically",
        what="one folder, os.replace, reported through a link",
        first=S.KILL_0,
    ),
    Animal(name="reports_the_working_folder", what="from_directory('.'), hidden files, names with spaces"),
    Animal(
        name="writes_while_it_saves",
        what="a thread appends to a file of the checkpoint all the time",
        refused="changed while it was staged: something still writes there",
    ),
    Animal(name="loud", what="megabytes, carriage returns, bytes that are no text"),
    Animal(name="own_stdout", what="descriptor 1 is a file, sys.stdout a tee, excepthook its own", first=S.RAISE_1),
    Animal(name="exits_in_the_loop", what="sys.exit(0) from inside the loop", first=S.AGAIN),
    Animal(
        name="exits_hard",
        what="os._exit(0), and os._exit(1) for whatever was raised",
        first=S.RAISE_1,
        causes={S.RAISE_1: contract.REASON_EXIT},
    ),
    Animal(name="in_asyncio", what="asyncio.run around the loop, steps in a thread", first=S.WORK_FULL),
    Animal(name="early_stopping", what="rank 0 decides, a broadcast tells; only rank 0 has files", step=3, steps=6),
    Animal(name="evaluates_on_rank_zero", what="rank 0 is slow, and sockets have a default time-out"),
    Animal(name="swallows_exceptions", what="report() in try/except Exception, and on it goes"),
    Animal(name="faulthandler_user", what="faulthandler for all signals, warnings are errors", first=S.AGENT_0),
    Animal(name="starts_itself_again", what="os.execv of itself with PYTHONHASHSEED"),
    Animal(
        name="runs_a_child",
        what="subprocess.run([python, train.py]), sys.exit(returncode)",
        refused="is no rank itself",
    ),
    Animal(name="session_leader", what="setsid, nice, umask 077, 64 open files"),
    Animal(name="reads_the_environment", what="reads torchrun's variables, then takes ours away"),
    Animal(name="package", what="python -m package.train with relative imports", command=python("-m", "outfit.train")),
    Animal(name="progress_bar", what="bars of tqdm's in bars, print() between", first=S.RAISE_1),
    Animal(
        name="reports_at_exit",
        what="the last report is a hook at exit",
        in_zoo_alone=True,
        strikes=BUT_NO_ROOM,  # Python ignores what a hook raises, and ends with 0
    ),
    Animal(name="forks_all_the_time", what="a thread forks in the middle of report()", in_zoo_alone=True),
    Animal(name="reports_from_threads", what="each report from a thread of its own", in_zoo_alone=True),
    Animal(name="closes_everything", what="closes all descriptors before each step", in_zoo_alone=True),
    Animal(name="works_nowhere", what="works in a folder that is gone", in_zoo_alone=True),
    Animal(
        name="odd_files",
        what="files with odd names, sparse, linked, hundreds of them",
        in_zoo_alone=True,
        strikes=BUT_NO_ROOM,  # its sparse file has no room on a small disk
    ),
    Animal(name="blocks_all_signals", what="all signals are blocked", in_zoo_alone=True),
    Animal(name="renames_itself", what="a title over arguments and environment, no dumps", in_zoo_alone=True),
    Animal(name="imports_anew", what="forgets the library, and imports it again", in_zoo_alone=True),
    Animal(name="closes_its_streams", what="no standard streams", in_zoo_alone=True),
    Animal(name="freezes_time", what="clocks that stand still", in_zoo_alone=True),
    Animal(name="stops_itself", what="SIGSTOP for a while", in_zoo_alone=True),
    Animal(name="odd_metrics", what="thousands of metrics, of all kinds", in_zoo_alone=True),
    Animal(name="few_resources", what="16 descriptors, files of 64 KiB, the lowest priority", in_zoo_alone=True),
    Animal(
        name="torch_recipe",
        what="DDP, accumulation, EMA, scheduler, compile, forked loader workers",
        step=2,
        in_zoo_alone=True,
        of_torch=True,
        strikes=(S.KILL_1, S.KILL_0, S.STOP),
    ),
    Animal(
        name="torch_recipe_spawn",
        what="the same with spawned loader workers",
        command=python("torch_recipe.py", "spawn"),
        step=2,
        in_zoo_alone=True,
        of_torch=True,
        strikes=(S.KILL_1, S.KILL_0, S.AGENT_1, S.STOP, S.AGAIN),
    ),
    Animal(
        name="torchrun",
        what="torchrun around the script",
        command=(TORCHRUN, "plain.py"),
        in_zoo_alone=True,
        strikes=(S.KILL_1, S.RAISE_1, S.STOP),
        causes=BY_EXIT_CODE,
    ),
)

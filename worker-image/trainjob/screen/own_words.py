"""What a failure's own words tell of a way out, where they tell more than its reason; and the line of the user's where
it happened. Pure.

Asked by `failure`, which has the advice for each reason.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trainjob.agent import call_names
from trainjob.screen import missing_module
from trainjob_api import contract

if TYPE_CHECKING:
    from trainjob_api.v1alpha1 import Failure

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_INSTALLED = re.compile(r"/(site|dist)-packages/|/lib/python3[.0-9]*/|^<")

_MISSING = re.compile(r"ModuleNotFoundError: No module named '(?P<name>[^']+)'")
_CRASHES = (4, 6, 7, 8, 11)
"""SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV."""
_NO_INPUT = "EOFError: EOF when reading a line"
"""input()'s, where nobody can type."""


def place(failure: Failure) -> str | None:
    """`train.py:61`: the innermost frame that is not an installed library's, where a traceback came with the
    failure.
    """
    frames = list(_FRAME.finditer(failure.traceback or ""))
    own = [frame for frame in frames if not _INSTALLED.search(frame["file"])] or frames
    return f"{own[-1]['file']}:{own[-1]['line']}" if own else None


_LOADER_CRASHED = (
    "It crashed in native code that loads data (a decoder, an extension): DataLoader(num_workers=0) shows where"
)
REFUSED = "Correct the script's arguments, which follow --"
LACKS = "Give the script the arguments that it reads at {where}: they go after --, as `-- 0.1`"
ANOTHER_MODEL = "The checkpoint is of another model"
_BY_HAND = (
    "Something told it to end: a script, a scheduler, or a person. Unless it comes again there is nothing to mend"
)
_OF_A_LOADER = {
    "SIGBUS": "Make /dev/shm larger (`df -h /dev/shm`), or give the DataLoader fewer processes (num_workers)",
    "SIGKILL": "If `dmesg | tail` shows that memory ran out, use less: fewer processes of the DataLoader "
    "(num_workers), smaller batches. If it shows nothing, a person or a program killed it",
    **dict.fromkeys(("SIGTERM", "SIGINT", "SIGHUP"), _BY_HAND),
}
"""What to do about a process of a DataLoader that was killed, by the signal."""


def pattern(failure: Failure, *, on_a_cluster: bool, in_python: bool, resumes: bool) -> str | None:
    """What to do, with `{where}` and `{rank}` to be filled in; None: its reason tells as much. `in_python`: it is said
    by fit(), whose caller types no `tj`; `resumes`: there is a checkpoint from which the job resumes.
    """
    said = f"{failure.message}\n{failure.traceback or ''}"
    missing = _MISSING.search(said)
    if "collective mismatch" in said:
        return (
            "The ranks make different calls of torch.distributed: let all call the same collectives, in the same order "
            "and with the same sizes (this rank stood at {where}; docs/hangs.md)"
        )
    if failure.signal in _CRASHES:
        return (
            "It crashed in native code, called at {where}: does a library there not fit this torch, Python or driver?"
            if place(failure)
            else "It crashed in native code: does a library not fit this torch, Python or driver?"
        )
    if "lost its DataLoader: " in failure.message:
        return next((said for name, said in _OF_A_LOADER.items() if name in failure.message), _LOADER_CRASHED)
    if contract.ORIGIN_DAMAGED in failure.message:
        return "Resume from the checkpoint before it, or from none"
    if failure.reason == contract.REASON_RANK_ENDED_EARLY and call_names.ALL_CALL_IT in failure.message:
        return (
            "If the call stands under `if rank == 0:`, take it out there: all ranks report, and rank 0 alone may bring "
            "the checkpoint. Else rank {rank} ended before its first one"
        )
    if failure.reason == contract.REASON_EXIT and ": error: " in failure.message and not in_python:
        return REFUSED
    if failure.reason == contract.REASON_EXIT and place(failure):
        return "Look at {where}: the script ends itself there, by sys.exit() or the like"
    if failure.exit_code == 2 and failure.reason == contract.REASON_EXIT and not in_python:
        return "Exit code 2 is what a script ends with that refuses its arguments: they go after --, as `-- --epochs 3`"
    if "BdbQuit" in said:
        there = (
            "ScalingConfig(num_workers=0) runs the function" if in_python else "`tj run --in-process` runs the script"
        )
        return f"Take the breakpoint out, or debug without ranks: {there} in your terminal, where breakpoint() works"
    if missing is not None:
        return missing_module.advice(missing["name"].replace("{", "").replace("}", ""), on_a_cluster)
    if "bootstrapping phase" in said or "freeze_support()" in said:
        return (
            "A process that this script starts imports it again: put what starts the training below "
            "`if __name__ == '__main__':`"
        )
    if "DataLoader worker (pid" in said and "exited unexpectedly" in said:
        return (
            "A process of the DataLoader at {where} ended; its own error stands above in the output of rank {rank}. "
            "With the start method spawn, what starts the training must stand below `if __name__ == '__main__':`; "
            "num_workers=0 shows other errors where they are"
        )
    if "pickle" in said and ("popen_spawn" in said or "popen_forkserver" in said):
        return (
            "What a process that starts with spawn gets must be picklable (of a DataLoader the data set, collate_fn "
            "and worker_init_fn): define them at the top of a module, not in a function, or use the start method fork "
            "({where}). For fit() it is a module that the script imports: the script itself is none in the ranks"
        )
    if "EADDRINUSE" in said or "Address already in use" in said:
        return (
            "A port is in use ({where}): leave the address to the environment (init_process_group() without "
            "init_method, MASTER_PORT as it is), or take a free one"
        )
    if "in loading state_dict" in said:
        return _of_weights(said, resumes=resumes, in_python=in_python)
    if _NO_INPUT in said:
        return f"Take input() out at {{where}}: ranks have no terminal. {_instead_of_input(in_python)}"
    if _lacks_an_argument(failure) and not in_python:
        return LACKS
    return None


_BEFORE = re.compile(re.escape(contract.CHECKPOINT_BEFORE).replace(r"\{\}", r"(\S+)"))


def checkpoint_before(said: str) -> str | None:
    """The good checkpoint before a damaged one that resumeFrom names, where the sentence tells of one."""
    found = _BEFORE.search(said)
    return None if found is None else found[1]


def is_about_arguments(failure: Failure) -> bool:
    """Whether the script was started with others than it takes: the same command would fail again."""
    return pattern(failure, on_a_cluster=False, in_python=False, resumes=False) in (REFUSED, LACKS)


def is_fit_of_ranks(failure: Failure) -> bool:
    """Whether the ranks of a job called fit(): the job itself is not wanted then."""
    return failure.reason == contract.REASON_USER_ERROR and contract.JOBS_OF_RANKS in failure.message


def is_of_another_model(failure: Failure, *, resumes: bool) -> bool:
    """Whether the checkpoint from which the job resumes does not fit the script's model: it never will."""
    said = pattern(failure, on_a_cluster=False, in_python=False, resumes=resumes)
    return said is not None and said.startswith(ANOTHER_MODEL)


def _of_weights(said: str, *, resumes: bool, in_python: bool) -> str:
    """A state_dict that does not fit: by its prefix, or because it is another model's."""
    if re.search(r'key\(s\) in state_dict: [^\n]*"module\.', said):
        return (
            "Fix {where}: load what was saved through prepare_model() into a model of the same class; of one saved "
            "without it strip or add the prefix `module.`"
        )
    if resumes:
        anew = "under another RunConfig.name" if in_python else "with --fresh or under another --name"
        return f"{ANOTHER_MODEL} than the script has now ({{where}}): start over {anew}, or make the model as it was"
    return "Fix {where}: the weights that it loads are of another model than the one there"


def _instead_of_input(in_python: bool) -> str:
    if in_python:
        return "Give the loop what it asks for by train_loop_config"
    return "Give it an argument, after --; `tj run --in-process` runs the script in your terminal, as one rank"


def _lacks_an_argument(failure: Failure) -> bool:
    """The line that broke reads more of sys.argv than there is."""
    lines = (failure.traceback or "").rstrip().splitlines()
    if not lines or not lines[-1].startswith(("IndexError: ", "ValueError: not enough values to unpack")):
        return False
    return any(re.search(r"\bargv\b", line) for line in lines[-4:-1] if not _FRAME.search(line))

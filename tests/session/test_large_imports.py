"""A rank imports torch without the garbage collector, and whoever looks finds nothing else changed. A package of
that name stands in for it.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from support.patience import HANG_S
from support.ranks import Ended, boot, environment, finish
from trainjob.session import large_imports

BODY = """
import gc
made = [[] for _ in range(1000)]
was_on = gc.isenabled()
"""


def run(folder: Path, script: str, *, torch: str = BODY) -> Ended:
    for name, source in {
        "torch/__init__.py": torch,
        "torch/_dynamo.py": BODY,
        "torch/optim.py": BODY,
        "train.py": textwrap.dedent(script),
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(source)
    return finish([boot(["train.py"], {}, folder)])[0]


def test_the_collector_is_off_inside_and_on_after(tmp_path: Path) -> None:
    script = """
        import gc, torch, torch.optim
        print(torch.was_on, torch.optim.was_on, gc.isenabled())
        import torch._dynamo
        print(torch._dynamo.was_on, gc.isenabled())
    """
    ended = run(tmp_path, script)
    assert (ended.out, ended.err) == ("False True True\nFalse True\n", "")


def test_what_was_imported_is_old_and_nothing_is_frozen(tmp_path: Path) -> None:
    script = """
        import gc
        class Model: pass
        before = Model()
        before.itself = before
        import torch
        old = {id(each) for each in gc.get_objects(generation=2)}
        print(id(torch.made) in old, id(before) in old, gc.get_freeze_count(), gc.get_count()[0] < 500)
        gone = []
        gc.callbacks.append(lambda phase, about: gone.append(about["collected"]))
        del before
        gc.collect()
        print(gone[-1] > 0)
    """
    assert run(tmp_path, script).out == "True True 0 True\nTrue\n"


def test_what_the_program_froze_stays_frozen(tmp_path: Path) -> None:
    assert (
        run(
            tmp_path,
            "import gc; gc.freeze(); count = gc.get_freeze_count(); import torch; print(gc.get_freeze_count() == "
            "count > 0, gc.isenabled())",
        ).out
        == "True True\n"
    )


def test_inside_one_another_it_stays_off_to_the_end(tmp_path: Path) -> None:
    script = "import gc, torch; print(torch.before, torch._dynamo.was_on, torch.was_on, gc.isenabled())"
    torch = "import gc; before = gc.isenabled(); from torch import _dynamo; was_on = gc.isenabled()"
    assert run(tmp_path, script, torch=torch).out == "False False False True\n"


def test_a_loop_that_keeps_it_off_for_itself_finds_it_off(tmp_path: Path) -> None:
    assert (
        run(tmp_path, "import gc; gc.disable(); import torch; print(gc.isenabled(), gc.get_freeze_count())").out
        == "False 0\n"
    )


def test_an_import_that_fails_fails_as_ever(tmp_path: Path) -> None:
    script = """
        import gc, sys
        try:
            import torch
        except ImportError as error:
            print(error, gc.isenabled(), "torch" in sys.modules)
    """
    assert run(tmp_path, script, torch="raise ImportError('libcuda.so.1')").out == "libcuda.so.1 True False\n"


def test_a_module_that_is_not_there_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys; sys.path[:] = sys.path[:1]; import torch")
    ended = finish([boot(["train.py"], {}, tmp_path)])[0]
    assert "ModuleNotFoundError: No module named 'torch'" in ended.err


def test_tools_see_pythons_own_loader(tmp_path: Path) -> None:
    script = """
        import importlib, inspect, torch
        print(type(torch.__loader__).__name__, torch.__spec__.origin == torch.__file__, inspect.getsource(torch).strip().splitlines()[0])
        print(importlib.reload(torch).was_on, importlib.util.find_spec("torch").name)
    """
    assert run(tmp_path, script).out == "SourceFileLoader True import gc\nFalse torch\n"


def test_the_boot_itself_imports_no_torch(tmp_path: Path) -> None:
    assert run(tmp_path, "import sys; print('torch' in sys.modules)").out == "False\n"


def test_inside_quietly_it_is_off_and_afterwards_as_it_was() -> None:
    was_on = []
    with large_imports.quietly():
        was_on.append(gc.isenabled())
        with large_imports.quietly():
            was_on.append(gc.isenabled())
        was_on.append(gc.isenabled())
    assert (was_on, gc.isenabled()) == ([False] * 3, True)
    gc.disable()
    try:
        with pytest.raises(ImportError), large_imports.quietly():
            raise ImportError
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_launcher_imports_what_drives_a_job_so(tmp_path: Path) -> None:
    script = """
        import gc, sys
        from trainjob.cli.main import main
        class Finder:
            @staticmethod
            def find_spec(name, path=None, target=None):
                if name in ("trainjob.cli.run", "trainjob.launch.local.backend"):
                    print(name, gc.isenabled())
        sys.meta_path.insert(0, Finder)
        code = main(["run", "train.py", "--storage", sys.argv[1]])
        print(code, gc.isenabled())
    """
    (tmp_path / "train.py").write_text("pass")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "storage")],
        cwd=tmp_path,
        env=environment({"XDG_STATE_HOME": str(tmp_path / "state")}),
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert "trainjob.cli.run False" in lines and "trainjob.launch.local.backend False" in lines, done
    assert lines[-1] == "0 True", done

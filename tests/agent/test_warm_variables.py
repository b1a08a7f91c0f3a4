"""Scripts whose text gives them variables that torch reads when it is imported: their ranks are not forks."""

from __future__ import annotations

import pytest

from trainjob.agent.warm import choice, variables


def texts(lines: str) -> list[bytes]:
    """Of a script with these lines, and a module beside it."""
    return [b"import helper\n", f"import os\n{lines}\nimport torch\n".encode()]


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        ('os.environ["OMP_NUM_THREADS"] = "4"', "OMP_NUM_THREADS"),
        ("environ [ 'TORCH_LOGS' ]='+dynamo'", "TORCH_LOGS"),
        ('os.environ.setdefault("MKL_NUM_THREADS", "1")', "MKL_NUM_THREADS"),
        ('os.putenv("KMP_AFFINITY", "none")', "KMP_AFFINITY"),
        ('os.environ.update({"A": "1",\n  "PYTORCH_JIT": "0"})', "PYTORCH_JIT"),
        ('os.environ.update(A="1", OMP_NUM_THREADS="1")', "OMP_NUM_THREADS"),
        ('os.environ.update(OMP_NUM_THREADS="1")', "OMP_NUM_THREADS"),
        ('del os.environ["OMP_NUM_THREADS"]', "OMP_NUM_THREADS"),
        ('os.environ.pop("OMP_NUM_THREADS", None)', "OMP_NUM_THREADS"),
        ('os.environ["TQDM_DISABLE"] = "1"', "TQDM_DISABLE"),
        ('threads = os.environ["OMP_NUM_THREADS"]', None),
        ('if os.environ["OMP_NUM_THREADS"] == "4": pass', None),
        ('os.environ.get("TORCH_LOGS")', None),
        ('os.environ["MASTER_PORT"] = "1"; os.environ["NCCL_DEBUG"] = "INFO"', None),
    ],
)
def test_a_script_that_sets_what_torch_reads_at_its_import_is_not_forked(lines: str, name: str | None) -> None:
    found = choice.doubt("auto", texts(lines))
    assert (found is None) is (name is None), found
    assert name is None or f"the script sets {name}," in (found or "")
    assert choice.doubt("Always", texts(lines)) is None


@pytest.mark.parametrize(
    "lines",
    [
        'for v in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):\n    os.environ[v] = "1"',
        'from os import environ as env\nenv["OMP_NUM_THREADS"] = "1"',
        'from os import path, environ as env\nenv["OMP_NUM_THREADS"] = "1"',
        'env = os.environ\nenv["OMP_NUM_THREADS"] = "1"',
        'KEY = "OMP_NUM_THREADS"\nos.environ[KEY] = "1"',
        'for lib in ("OMP", "MKL"):\n    os.environ[f"{lib}_NUM_THREADS"] = "1"',
        'os.environ |= {"OMP_NUM_THREADS": "1"}',
        'os.environ.update(dict(OMP_NUM_THREADS="1"))',
        'os.environ["OMP_" + "NUM_THREADS"] = "1"',
        'NAMES = ["OMP_NUM_THREADS"]\nos.environ[NAMES[0]] = "1"',
        'os.environ["OMP_NUM_THREADS"], x = "1", 2',
        'with mock.patch.dict(os.environ, {"OMP_NUM_THREADS": "1"}):\n    import torch',
        'getattr(os, "environ")["OMP_NUM_THREADS"] = "1"',
        'del os.environ[{"a": "OMP_NUM_THREADS"}["a"]]',
    ],
)
def test_a_script_that_names_such_a_variable_and_may_set_it_is_not_forked(lines: str) -> None:
    assert "perhaps" not in (choice.doubt("auto", texts(lines)) or "perhaps")
    # The names may lie in another file than what sets them.
    first, *rest = lines.splitlines()
    if rest and not first.endswith(":"):
        assert choice.doubt("auto", [first.encode(), "\n".join(rest).encode()]) is not None


@pytest.mark.parametrize(
    "lines",
    [
        "for name, value in config['env'].items():\n    os.environ[name] = value",
        "os.environ.update(settings)",
        "os.environ.update({'A': '1', **more})",
        "os.environ.update({k: v for k, v in more})",
        "os.putenv(name, value)",
        "load_dotenv()",
        "os.environ |= more",
    ],
)
def test_a_script_that_sets_variables_whose_names_nobody_can_read_is_not_forked(lines: str) -> None:
    assert "whose names come from elsewhere" in (choice.doubt("auto", texts(lines)) or "")


@pytest.mark.parametrize(
    "lines",
    [
        'from os import environ\nrank = int(environ["RANK"])\nthreads = environ.get("OMP_NUM_THREADS")',
        'threads = int(os.environ.get("OMP_NUM_THREADS", 1))\nos.environ["HF_HOME"] = "/x"',
        'os.environ["HF_HOME"] = "/x"\nprint("OMP_NUM_THREADS" in os.environ)',
        'subprocess.run(["x"], env={**os.environ, "OMP_NUM_THREADS": "1"})',
        'subprocess.run(["x"], env=dict(os.environ, OMP_NUM_THREADS="1"))',
        'env = os.environ.copy()\nenv["OMP_NUM_THREADS"] = "1"',
        'TORCH_DTYPE = "float32"\nos.environ.update(env="1")',
        'os.environ.update({"WANDB_MODE": "offline", "HF_HOME": "/x"})',
        'print(os.environ["OMP_NUM_THREADS"], os.environ["RANK"])',
        'subprocess.run(["x"], env=os.environ)',
        'os.environ.pop("MASTER_PORT")\ndel os.environ["HF_HOME"]',
    ],
)
def test_a_script_that_only_reads_them_is_forked(lines: str) -> None:
    assert choice.doubt("auto", texts(lines)) is None


@pytest.mark.parametrize(
    ("line", "sets"),
    [
        ("os.environ['HF_HOME'] = place", True),
        ("os.environ[name] = value", True),
        ("os.environ.update(more)", True),
        ("os.environ.setdefault('A', 'b')", True),
        ("os.putenv('A', 'b')", True),
        ("del os.environ['A']", True),
        ("load_dotenv()", True),
        ("from os import environ as env; env['HF_HOME'] = place", True),
        ("rank = int(os.environ['RANK'])", False),
        ("first = os.environ['RANK'] == '0'", False),
    ],
)
def test_a_script_that_changes_its_environment(line: str, sets: bool) -> None:
    assert variables.sets_any(texts(line)) is sets


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("word", "times"),
    [("x", 400_000), ("a,", 200_000), ("import ", 50_000), ("from os import ", 30_000), ("'", 400_000)],
)
def test_a_file_of_data_is_read_through_once(word: str, times: int) -> None:
    """Not once for each of its characters: that would take hours."""
    assert choice.doubt("auto", texts(f"env = os.environ\nDATA = '{word * times}'\nfrom os import path")) is None

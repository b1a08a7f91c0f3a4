"""Faults that can be told before anything starts are one clear error each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainjob.launch import job as jobs
from trainjob.launch.errors import LaunchError
from trainjob.launch.local import checks
from trainjob.screen.asked import Asker
from trainjob_api.validation import InvalidTrainJob

ENVIRONMENT = {"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": ""}


def check(tmp_path: Path, *command: str, asker: Asker = Asker.MANIFEST, starts: bool = True, **more: object) -> None:
    job = jobs.from_script(jobs.ScriptJob(command=command, **more))  # type: ignore[arg-type]
    checks.check(job, ENVIRONMENT, str(tmp_path), asker, starts=starts)


def script(tmp_path: Path, text: str) -> str:
    (tmp_path / "train it ü.py").write_text(text)
    return "train it ü.py"


def test_a_good_job_passes(tmp_path: Path) -> None:
    check(tmp_path, sys.executable, "-u", script(tmp_path, "print(1)"), storage=str(tmp_path / "säfe place"))
    assert (tmp_path / "säfe place" / "default").is_dir()


def test_a_missing_script_is_named(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"script .*absent\.py does not exist"):
        check(tmp_path, sys.executable, "absent.py")


def test_a_job_that_is_refused_or_only_checked_leaves_no_folder(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    for storage in (there, tmp_path / "new"):
        with pytest.raises(LaunchError):
            check(tmp_path, sys.executable, "absent.py", storage=str(storage))
        check(tmp_path, sys.executable, script(tmp_path, ""), storage=str(storage), starts=False)
    assert there.is_dir() and not any(there.iterdir())
    assert not (tmp_path / "new").exists()


def test_a_script_is_only_offered_where_its_name_is_like_the_missing_one(tmp_path: Path) -> None:
    for name in ("onerank.py", "training.py"):
        (tmp_path / name).touch()
    with pytest.raises(LaunchError, match=r"did you mean training\.py\?"):
        checks.check_script(str(tmp_path / "trainign.py"), parse=True)
    with pytest.raises(LaunchError, match=r"does not exist: check the path"):
        checks.check_script(str(tmp_path / "other.py"), parse=True)


@pytest.mark.parametrize("name", ["trainjob.py", "torch.py"])
def test_a_script_that_hides_what_it_needs_is_to_be_renamed(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(LaunchError, match=rf"hides the package {name[:-3]} from its own imports: rename it"):
        checks.check_script(str(tmp_path / name), parse=True)


@pytest.mark.parametrize("name", ["trainjob", "torch"])
def test_a_file_beside_the_script_that_hides_what_it_needs_is_to_be_renamed(tmp_path: Path, name: str) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / f"{name}.py").touch()
    with pytest.raises(LaunchError, match=rf"{name}\.py hides the package {name} from the script beside it: rename it"):
        checks.check_script(str(tmp_path / "train.py"), parse=True)


@pytest.mark.parametrize("hides", ["trainjob/__init__.py", "torch/__init__.py", "torch.py"])
def test_what_hides_a_package_is_found_where_a_module_is_the_command_too(tmp_path: Path, hides: str) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / hides).parent.mkdir(exist_ok=True)
    (tmp_path / hides).touch()
    named = tmp_path / hides.removesuffix("/__init__.py")
    with pytest.raises(LaunchError, match=rf"{named} hides the package"):
        checks.check_script(str(tmp_path / "train.py"), parse=True)
    with pytest.raises(LaunchError, match=rf"{named} hides the package"):
        checks.check_command([sys.executable, "-m", "train"], os.environ, str(tmp_path))
    checks.check_command([sys.executable, "-P", "-m", "json.tool"], os.environ, str(tmp_path))


def test_a_package_that_is_the_one_itself_hides_nothing(tmp_path: Path) -> None:
    for name, part in checks.HIDDEN.items():
        (tmp_path / name).mkdir()
        for file in ("__init__.py", part):
            (tmp_path / name / file).touch()
    (tmp_path / "data" / "torch").mkdir(parents=True)  # without an __init__.py an installed package comes first
    checks.check_beside(str(tmp_path))
    checks.check_beside(str(tmp_path / "data"))


def test_what_hides_a_package_beside_a_script_that_calls_fit_is_found(tmp_path: Path) -> None:
    (tmp_path / "torch.py").touch()
    (tmp_path / "script.py").write_text(
        "from trainjob import DataParallelTrainer\nif __name__ == '__main__':\n    DataParallelTrainer(print).fit()\n"
    )
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert f"LaunchError: {tmp_path}/torch.py hides the package torch" in done.stderr


def test_a_folder_is_no_script(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(LaunchError, match="__main__"):
        check(tmp_path, sys.executable, "folder")


def test_a_syntax_error_is_shown_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"SyntaxError in .*train it ü\.py, line 2: .*: def f\("):
        check(tmp_path, sys.executable, script(tmp_path, "x = 1\ndef f(\n"))


def test_an_interpreter_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"'/no/python3' does not exist.*this Python is"):
        check(tmp_path, "/no/python3", script(tmp_path, ""))
    with pytest.raises(LaunchError, match=r"'python3.99' is not in PATH"):
        check(tmp_path, "python3.99", script(tmp_path, ""))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("#!/bin/sh\necho 3 8\n", "Python 3.8, and workers need 3.9"),
        (
            "#!/bin/sh\necho 3 12\necho \"ModuleNotFoundError: No module named 'trainjob'\" >&2\nexit 1\n",
            "cannot import trainjob",
        ),
        ("#!/bin/sh\necho wrong >&2\nexit 3\n", r"does not run as Python \(wrong\)"),
    ],
)
def test_a_wrong_python_is_one_sentence(tmp_path: Path, body: str, said: str) -> None:
    fake = tmp_path / "python3"
    fake.write_text(body)
    fake.chmod(0o755)
    with pytest.raises(LaunchError, match=said):
        check(tmp_path, str(fake), script(tmp_path, ""))


def test_a_storage_path_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LaunchError, match="runs through something that is no folder"):
        check(tmp_path, sys.executable, script(tmp_path, ""), storage=str(tmp_path / "file"))


def test_a_read_only_storage() -> None:
    with pytest.raises(LaunchError, match=r"storage /proc/.* give another storage path"):
        checks.check_storage("/proc/trainjob/default/x")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux")
def test_a_full_storage_is_called_full() -> None:
    error = OSError(28, "No space left on device")
    assert "is full" in checks._storage_text("/data", error)


def test_more_gpus_than_there_are(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="2 GPUs for 2 ranks, and no GPU is visible"):
        check(tmp_path, sys.executable, script(tmp_path, ""), workers=2, gpus_per_worker=1)


@pytest.mark.parametrize(
    ("asker", "said", "unsaid"),
    [
        (Asker.SHELL, "lower --gpus or --workers, or train on the CPU with --gpus 0", "use_gpu"),
        (Asker.PYTHON, "lower ScalingConfig.num_workers, or train on the CPU with use_gpu=False", "--gpus"),
        (Asker.MANIFEST, "lower spec.workers or the container's limit of nvidia.com/gpu", "use_gpu"),
    ],
)
def test_too_many_gpus_are_told_in_the_words_of_who_asked(tmp_path: Path, asker: Asker, said: str, unsaid: str) -> None:
    with pytest.raises(LaunchError) as caught:
        check(tmp_path, sys.executable, script(tmp_path, ""), asker=asker, workers=2, gpus_per_worker=1)
    assert said in str(caught.value) and unsaid not in str(caught.value)


def test_a_start_point_that_is_not_there_is_told_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "1-1-8").mkdir(parents=True)
    (tmp_path / "checkpoints" / "1-1-8" / "model.pt").write_text("x")
    absent = str(tmp_path / "checkpoints" / "1-1-9")
    for asker, name in ((Asker.SHELL, "--resume-from"), (Asker.PYTHON, "resume_from_checkpoint")):
        with pytest.raises(LaunchError) as caught:
            check(tmp_path, sys.executable, script(tmp_path, ""), asker=asker, resume_from=absent)
        assert str(caught.value).startswith(f"{name}: there is no folder {absent}")
        assert "near it: 1-1-8" in str(caught.value)
    with pytest.raises(LaunchError, match=r"has no \.trainjob/"):
        check(tmp_path, sys.executable, script(tmp_path, ""), resume_from=absent.replace("1-1-9", "1-1-8"))


def test_an_invalid_object_is_refused_as_kubectl_would(tmp_path: Path) -> None:
    with pytest.raises(InvalidTrainJob, match=r"resumeFrom"):
        check(tmp_path, sys.executable, script(tmp_path, ""), resume_from="somewhere/relative")

from __future__ import annotations

import textwrap
import traceback
from pathlib import Path
from typing import Any

import pytest

from trainjob.session import errors
from trainjob.session.failure import describe, format_traceback, is_communication, loader_kill

DistBackendError = type("DistBackendError", (RuntimeError,), {})


def _of(module: str, base: type[Exception] = Exception) -> type[Exception]:
    """A library's own kind of error."""
    return type("OwnError", (base,), {"__module__": module})


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(
            "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:33261"
        ),
        RuntimeError(
            "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Read error [10.0.0.7]:4312: Connection reset "
            "by peer"
        ),
        RuntimeError("[gloo/transport/tcp/pair.cc:146] writev [10.0.0.7]:4312: Broken pipe"),
        RuntimeError(
            "[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete"
        ),
        RuntimeError("Application timeout caused pair closure"),
        RuntimeError(
            "NCCL error in: ProcessGroupNCCL.cpp:1331, unhandled system error (run with NCCL_DEBUG=INFO for details)"
        ),
        RuntimeError("Socket Timeout"),
        RuntimeError("The client socket has timed out after 60000ms while trying to connect to (10.0.0.1, 29500)."),
        RuntimeError("wait timeout after 300000ms, keys: /default_pg/0//cpu//0/1"),
        RuntimeError("Timed out after 61 seconds waiting for clients. 1/2 clients joined."),
        DistBackendError("anything"),
        _of("tensorflow.python.framework.errors_impl")(
            "Graph execution error:\n\nDetected at node CollectiveReduceV2 defined at (most recent call last):\n\n"
            "Collective ops is aborted by: recvmsg:Connection reset by peer\nAdditional GRPC error information from "
            "remote target /job:worker/replica:0/task:1 while calling /tensorflow.WorkerService/RecvBuf:"
        ),
        _of("tensorflow.python.framework.errors_impl")(
            "Collective ops is aborted by: Error reported from /job:worker/task:1: The following tasks are unhealthy "
            "(stopped sending heartbeats):\n/job:worker/replica:0/task:1"
        ),
        _of("xgboost.core", ValueError)(
            "[19:48:52] result.cc:83: [coll_c_api.cc:38|19:48:52]:\n\n- [allgather.cc:50|19:48:52]: Ring allgather "
            "failed, current iteration:0\n- [loop.cc:101|19:48:52]: Encountered EOF. The other end is likely closed."
        ),
        _of("xgboost.core", ValueError)("- [socket.h:79|19:48:52]: Poll error condition:Success code:0"),
        ValueError(
            "UNKNOWN: Gloo AllGather failed: [external/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer "
            "[127.0.0.1]:10929"
        ),
        _of("lightgbm.basic")("Socket recv error, Connection reset by peer (code: 104)"),
        errors.RankGoneError("rank 1 ended", [1]),
        errors.BarrierTimeoutError("rank 1 is missing", [1]),
        errors.AgentLostError("gone"),
    ],
)
def test_a_lost_peer_is_communication(error: BaseException) -> None:
    assert is_communication(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        BrokenPipeError(32, "Broken pipe"),
        ConnectionResetError(104, "Connection reset by peer"),
        ValueError("Connection closed by peer"),
        _of("mine.service")("Connection reset by peer"),
        _of("xgboost.core", ValueError)("[19:48:52] learner.cc:12: Check failed: labels must be in [0, num_class)"),
        _of("lightgbm.basic")("Number of data and label do not match"),
        _of("tensorflow.python.framework.errors_impl")("Matrix size-incompatible: In[0]: [32,4], In[1]: [5,16]"),
        errors.BarrierMismatchError("rank 0 called report, rank 1 barrier"),
        errors.CheckpointError("no space left"),
    ],
)
def test_the_users_own_error_is_not(error: BaseException) -> None:
    assert not is_communication(error)


def test_what_it_was_raised_from_counts() -> None:
    try:
        try:
            raise RuntimeError("gloo: Connection closed by peer")
        except RuntimeError as lost:
            raise ValueError("evaluation failed") from lost
    except ValueError as error:
        assert is_communication(error)
    try:
        try:
            raise RuntimeError("gloo: Connection closed by peer")
        except RuntimeError:
            raise ValueError("unrelated") from None
    except ValueError as error:
        assert not is_communication(error)


def _raised(tmp_path: Path, source: str, name: str = "train.py") -> BaseException:
    """The exception that a script of this text raises, with its real frames."""
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(source))
    namespace: dict[str, Any] = {"__name__": "user"}
    try:
        exec(compile(path.read_text(), str(path), "exec"), namespace)
    except Exception as error:
        return error
    raise AssertionError("the script did not raise")


def test_a_cause_that_is_false_counts_too() -> None:
    class Several(RuntimeError):
        def __len__(self) -> int:
            return 0

    try:
        raise ValueError("no data") from Several("Connection closed by peer [127.0.0.1]:1")
    except ValueError as error:
        assert is_communication(error)
        assert "Connection closed" in format_traceback(error)


def test_wrapper_frames_go_and_the_users_stay(tmp_path: Path) -> None:
    _raised(tmp_path, "def call(f):\n    f()\nraise KeyError", "torch/nn/modules/module.py")
    error = _raised(
        tmp_path,
        f"""
        import importlib.util
        spec = importlib.util.spec_from_file_location("wrapped", {str(tmp_path / "torch/nn/modules/module.py")!r})
        module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except KeyError:
            pass
        def forward():
            raise ValueError("bad shape")
        module.call(forward)
        """,
    )
    text = format_traceback(error)
    assert text.startswith("Traceback (most recent call last):\n")
    assert text.endswith("ValueError: bad shape")
    assert "in forward" in text and "module.call(forward)" in text
    assert "module.py" not in text
    assert "importlib" not in text


def test_a_session_error_points_at_the_users_line(fresh_session: None, tmp_path: Path) -> None:
    error = _raised(tmp_path, "import trainjob\ntrainjob.barrier()")
    text = format_traceback(error)
    assert "trainjob.barrier()" in text
    assert "calls.py" not in text and "link.py" not in text


def test_long_tracebacks_lose_library_frames_first(tmp_path: Path) -> None:
    library = tmp_path / "lib/site-packages/deep.py"
    library.parent.mkdir(parents=True)
    # Frames that differ, or the traceback module folds them into one.
    steps = "\n".join(f"def step_{i}():\n    step_{i + 1}()" for i in range(40))
    library.write_text(steps + "\ndef step_40():\n    raise RuntimeError('at the bottom')\n")
    error = _raised(
        tmp_path,
        f"import sys\nsys.path.insert(0, {str(library.parent)!r})\nimport deep\nsys.path.pop(0)\ndef train():\n    "
        "deep.step_0()\ntrain()",
    )
    text = format_traceback(error)
    assert len(text) <= 2048
    assert "in train" in text
    assert "39 library frames left out" not in text.splitlines()[0]
    assert "library frames left out" in text
    assert "in step_40" in text and text.endswith("RuntimeError: at the bottom")


def test_the_tail_is_kept_and_bounded(tmp_path: Path) -> None:
    error = _raised(tmp_path, "raise ValueError('x' * 5000 + 'the end')")
    text = format_traceback(error)
    assert len(text) == 2048 and text.startswith("...") and text.endswith("the end")
    assert len(describe(error)["message"]) == 1024


def test_causes_are_told(tmp_path: Path) -> None:
    error = _raised(tmp_path, "try:\n    {}['a']\nexcept KeyError as e:\n    raise ValueError('no a') from e")
    text = format_traceback(error)
    assert text.index("KeyError: 'a'") < text.index("direct cause") < text.index("ValueError: no a")


def test_an_exception_whose_str_raises() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    assert describe(Broken())["message"] == "<str() of the Broken raised RuntimeError>"


def test_types_are_named_as_users_know_them() -> None:
    assert describe(ValueError("x"))["type"] == "ValueError"
    assert describe(errors.RankGoneError("x"))["type"] == "trainjob.session.errors.RankGoneError"


class TwoWords(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


@pytest.mark.parametrize(
    ("error", "raised", "kind", "message"),
    [
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no start"), RuntimeError, "UnicodeDecodeError", "'utf-8' codec "),
        (TwoWords("no", "luck"), RuntimeError, f"{__name__}.TwoWords", "no luck (in DataLoader worker process 0)"),
        (TwoWords("a", "b\nc"), RuntimeError, f"{__name__}.TwoWords", "a b\nc (in DataLoader worker process 0)"),
        (ValueError(), ValueError, "ValueError", "in DataLoader worker process 0"),
        (ValueError("\nno"), ValueError, "ValueError", "no (in DataLoader worker process 0)"),
        (errors.CheckpointError("x"), errors.CheckpointError, "trainjob.session.errors.CheckpointError", "x (in Data"),
    ],
)
def test_an_error_of_a_loaders_process_has_the_type_that_it_had_there(
    error: Exception, raised: type[Exception], kind: str, message: str
) -> None:
    wrapper = pytest.importorskip("torch._utils").ExceptionWrapper
    try:
        raise error
    except Exception:
        wrapped = wrapper(where="in DataLoader worker process 0")
    with pytest.raises(raised) as there:
        wrapped.reraise()
    told = describe(there.value)
    assert type(there.value) is raised and told["type"] == kind and told["message"].startswith(message), told


def test_an_error_of_a_loaders_process_is_told_by_what_happened_there(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    data = torch.utils.data
    script = tmp_path / "broken.py"
    script.write_text(
        "class Broken:\n    def __len__(self):\n        return 4\n\n    def __getitem__(self, at):\n        return {}['b']\n"
    )
    names: dict[str, Any] = {}
    exec(compile(script.read_text(), str(script), "exec"), names)
    with pytest.raises(KeyError) as raised:
        list(data.DataLoader(names["Broken"](), num_workers=1))
    told = describe(raised.value)
    assert told["message"] == "'b' (in DataLoader worker process 0)"
    lines = [line for line in told["traceback"].splitlines() if line.strip("~^ ")]
    assert lines[-4:] == [
        "in DataLoader worker process 0:",
        f'  File "{script}", line 6, in __getitem__',
        "    return {}['b']",
        "KeyError: 'b'",
    ]
    assert "Original Traceback" not in told["traceback"] and "/torch/" not in told["traceback"]


def test_a_cause_without_a_line_of_the_users_is_one_line(fresh_session: None, tmp_path: Path) -> None:
    """What happened inside of a library before it raised an error of its own: the ranks' logs have those frames."""
    error = _raised(
        tmp_path,
        "import sys\nfrom trainjob import Checkpoint\nCheckpoint.from_dict({'inner': {'f': sys.stdout.buffer}})",
    )
    lines = format_traceback(error).splitlines()
    assert lines[0].startswith("TypeError: cannot pickle") and "direct cause" in lines[2]
    assert "Checkpoint.from_dict({'inner'" in format_traceback(error) and "dict_file.py" not in format_traceback(error)


def test_of_a_killed_process_of_a_data_loader_the_users_line_is_printed_and_no_librarys(tmp_path: Path) -> None:
    """As torch raises it: inside of whatever the main thread was at, and then once more."""
    error = _raised(
        tmp_path,
        """
        import json
        def unpack(text):
            raise RuntimeError("DataLoader worker (pid 7568) is killed by signal: Killed. ")
        def main():
            try:
                json.loads("{}", object_hook=unpack)
            except RuntimeError as error:
                raise RuntimeError("DataLoader worker (pid(s) 7568) exited unexpectedly") from error
        main()
        """,
    )
    shown = loader_kill(error)
    assert shown is not None
    text = "".join(traceback.format_exception(type(shown), shown, shown.__traceback__))
    assert text.endswith("RuntimeError: DataLoader worker (pid 7568) is killed by signal: Killed. \n")
    assert "in main" in text and "json/" not in text
    assert "direct cause" not in text and text.count("Traceback") == 1
    assert loader_kill(ValueError("is killed by signal: Killed")) is None

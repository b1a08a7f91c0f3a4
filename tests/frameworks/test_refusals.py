"""What an integration says when something is missing or wrong, and who is let into the ring of the ranks."""

from __future__ import annotations

import importlib
import json
import os
import re
import socket
import sys
import threading
import warnings
from importlib.util import find_spec
from typing import Any

import pytest

from support.patience import HANG_S
from trainjob.errors import TrainJobError
from trainjob.integrations import ring
from trainjob.session import calls
from trainjob.session.context import TrainContext

LIBRARIES = {
    "lightning": "lightning",
    "huggingface": "transformers",
    "deepspeed": "deepspeed",
    "xgboost": "xgboost",
    "lightgbm": "lightgbm",
    "orbax": "orbax",
    "keras": "keras",
}


def context(rank: int, world_size: int) -> TrainContext:
    return TrainContext(rank, world_size, rank, world_size, 0, "job", "local", 1, 1, None, "")


class Absent:
    """Finds that a library is not there, whether it is or not."""

    def __init__(self, library: str) -> None:
        self._library = library

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name in (self._library, f"pytorch_{self._library}"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_missing_library_is_told_with_the_way_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library = LIBRARIES[name]
    for module in [one for one in sys.modules if one.partition(".")[0] in (library, f"pytorch_{library}")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "meta_path", [Absent(library), *sys.meta_path])
    ours = f"trainjob.integrations.{name}"
    for module in [one for one in sys.modules if one == ours or one.startswith(f"{ours}.")]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(
        ImportError, match=rf"{LIBRARIES[name]}\S* is not installed here: pip install '{LIBRARIES[name]}\S*>="
    ):
        importlib.import_module(f"trainjob.integrations.{name}")


def test_a_public_name_is_found_where_the_page_says() -> None:
    import trainjob

    assert {"lightning", "huggingface", "deepspeed", "xgboost", "lightgbm", "tensorflow", "orbax", "keras"} <= set(
        dir(trainjob)
    )


@pytest.mark.skipif(find_spec("xgboost") is None, reason="xgboost is not installed: make test-frameworks")
def test_a_callback_refuses_a_number_that_makes_no_sense() -> None:
    from trainjob.xgboost import ReportCallback

    with pytest.raises(ValueError, match=r"every_n_rounds=0\): a whole number of 1 or more, or None"):
        ReportCallback(every_n_rounds=0)


def resumed(library: str, **parameters: Any) -> None:
    """A training of 4 rounds that has 2 behind it."""
    import numpy

    module, ours = (importlib.import_module(name) for name in (library, f"trainjob.{library}"))
    rows = numpy.random.default_rng(0).normal(size=(200, 3))
    if library == "xgboost":
        given, base, begin = module.DMatrix(rows, rows[:, 0]), {"objective": "reg:squarederror"}, "xgb_model"
    else:
        given, base, begin = (
            module.Dataset(rows, rows[:, 0], free_raw_data=False),
            {"objective": "regression", "verbose": -1},
            "init_model",
        )
    first = module.train({**base, **parameters}, given, 2)
    callback = ours.ReportCallback(every_n_rounds=None)
    module.train({**base, **parameters}, given, 2, callbacks=[callback], **{begin: first})


@pytest.mark.parametrize(
    ("library", "given", "told"),
    [
        ("xgboost", {"subsample": 0.5, "colsample_bytree": 0.7}, "colsample_bytree, subsample"),
        ("lightgbm", {"bagging_freq": 1, "subsample": 0.5}, "bagging_fraction"),
    ],
)
def test_sampling_that_begins_anew_where_a_training_resumes_is_told_once(
    library: str, given: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed: make test-frameworks")
    monkeypatch.setattr(calls, "get_context", lambda: context(0, 2))
    monkeypatch.setattr(calls, "report", lambda *_, **__: None)
    monkeypatch.setattr(calls, "checkpoint_requested", lambda: False)
    monkeypatch.setattr(calls, "broadcast_from_rank_zero", lambda word: word)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        resumed(library, **given)
        resumed(library)
    (one,) = [str(each.message) for each in heard if "begins its random numbers anew" in str(each.message)]
    assert f"anew at round 2, where this training resumes: with {told} the model is not" in one


@pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate is not installed: make test-frameworks")
def test_a_trainer_whose_ranks_would_train_alone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainjob.integrations import huggingface

    monkeypatch.setattr(calls, "get_context", lambda: context(0, 2))

    class Arguments:
        world_size = 1

    with pytest.raises(TrainJobError, match="the job has 2 ranks, and the Trainer counts 1"):
        huggingface.check_size(Arguments())


class Ring:
    """Three ranks as threads; what rank 0 broadcasts reaches the others, as it does through the agents."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, before_members: Any = None) -> None:
        self._here = threading.local()
        self._said: Any = None
        self._heard = threading.Event()
        self._before_members = before_members
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setattr(calls, "get_context", lambda: context(self._here.rank, 3))
        monkeypatch.setattr(calls, "broadcast_from_rank_zero", self._broadcast)

    def _broadcast(self, data: Any) -> Any:
        if self._here.rank == 0:
            if self._before_members is not None:
                self._before_members(*data)
            self._said = data
            self._heard.set()
        else:
            assert self._heard.wait(HANG_S)
        return self._said

    def run(self, call: Any = lambda number: ring.gathered(f"word {number}")) -> dict[int, Any]:
        found: dict[int, Any] = {}

        def rank(number: int) -> None:
            self._here.rank = number
            found[number] = call(number)

        threads = [threading.Thread(target=rank, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANG_S)
        return found


def test_each_rank_hears_all_words_in_the_order_of_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["word 0", "word 1", "word 2"]
    assert Ring(monkeypatch).run() == {0: words, 1: words, 2: words}


def test_tensorflow_is_told_of_all_ranks_without_being_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainjob import tensorflow

    monkeypatch.setenv("TF_CONFIG", "of the attempt before")
    configs = Ring(monkeypatch).run(lambda number: tensorflow.set_tf_config())
    workers = configs[0]["cluster"]["worker"]
    assert len(set(workers)) == 3 and all(re.fullmatch(r"127\.0\.0\.1:\d+", one) for one in workers)
    assert configs == {
        rank: {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}} for rank in range(3)
    }
    assert json.loads(os.environ["TF_CONFIG"]) in configs.values() and "tensorflow" not in sys.modules

    monkeypatch.setattr(calls, "get_context", lambda: context(0, 1))
    assert tensorflow.set_tf_config() == {} and "TF_CONFIG" not in os.environ


def test_strangers_at_the_port_are_not_listened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    strangers: list[socket.socket] = []

    def knock(port: int, key: str) -> None:
        for said in (b'{"key": "guess", "rank": 1, "word": "forged"}\n', b"[]\n", b"\xff\n", b""):
            line = socket.create_connection(("127.0.0.1", port))
            line.sendall(said)
            if not said:
                line.shutdown(socket.SHUT_WR)
            strangers.append(line)
        forged = {"key": key, "rank": 7, "word": "of no rank"}
        strangers.append(socket.create_connection(("127.0.0.1", port)))
        strangers[-1].sendall(json.dumps(forged).encode() + b"\n")

    try:
        words = ["word 0", "word 1", "word 2"]
        assert Ring(monkeypatch, knock).run() == {0: words, 1: words, 2: words}
    finally:
        for line in strangers:
            line.close()

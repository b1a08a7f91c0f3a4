"""What the ranks of libraries with errors of their own raise when one of them is killed speaks of a lost peer: whoever
was killed is the cause of a failure then, and not who noticed it first.

Real libraries and processes, without agents, which would end the others before they raise.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import Any

import pytest

from cluster.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

WORLD = 3
LIMIT_S = 240
"""TensorFlow may take ten seconds and more to notice."""
RANK = """
import json, os, signal, sys
from trainjob.session.failure import is_communication

rank, given = int(sys.argv[1]), json.loads(sys.argv[2])

def struck():
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)

def xgboost():
    import numpy
    from xgboost import collective
    with collective.CommunicatorContext(**given):
        for number in range(1000):
            collective.allreduce(numpy.ones(1000), collective.Op.SUM)
            if number == 50:
                struck()

def lightgbm():
    import lightgbm, numpy
    rows = numpy.random.default_rng(rank).random((2000, 5))
    wishes = {"objective": "regression", "tree_learner": "data", "verbose": -1, "num_threads": 1}
    data = lightgbm.Dataset(rows, rows[:, 0])
    lightgbm.train(given[rank] | wishes, data, 1000, callbacks=[lambda at: at.iteration == 5 and struck()])

def jax():
    import jax, numpy
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(given[0], len(given), rank)
    from jax.experimental.multihost_utils import process_allgather
    for number in range(1000):
        process_allgather(numpy.ones(8))
        if number == 20:
            struck()

def tensorflow():
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": given}, "task": {"type": "worker", "index": rank}})
    import tensorflow as tf
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        weights = tf.Variable(tf.zeros([8]))
    def replica():
        weights.assign_sub(tf.distribute.get_replica_context().all_reduce("mean", weights + 1.0))
    step = tf.function(lambda: strategy.run(replica))
    for number in range(1000):
        step()
        if number == 20:
            struck()

try:
    globals()[sys.argv[3]]()
except Exception as error:
    print(json.dumps({"lost": is_communication(error), "said": repr(error)}), flush=True)
os._exit(0)
"""


TRACKER = """
import json, sys, time
from xgboost.tracker import RabitTracker
tracker = RabitTracker(host_ip="127.0.0.1", n_workers=int(sys.argv[1]))
tracker.start()
print(json.dumps(tracker.worker_args()), flush=True)
time.sleep(600)
"""


def addresses(_: ExitStack) -> list[str]:
    """Each rank imports its library before it binds its own: they stay free until then."""
    return [f"127.0.0.1:{free_port()}" for _ in range(WORLD)]


def xgboost(running: ExitStack) -> Any:
    """Its tracker, which may not live in this process: it breaks with its ranks."""
    tracker = running.enter_context(started("-c", TRACKER, str(WORLD)))
    assert tracker.stdout is not None
    return json.loads(tracker.stdout.readline())


def lightgbm(running: ExitStack) -> Any:
    at = addresses(running)
    ports = [int(each.rpartition(":")[2]) for each in at]
    return [{"machines": ",".join(at), "local_listen_port": port, "num_machines": WORLD} for port in ports]


@contextmanager
def started(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python; killed where the block ends."""
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("library", "given"), [("xgboost", xgboost), ("lightgbm", lightgbm), ("jax", addresses), ("tensorflow", addresses)]
)
def test_survivors_speak_of_a_lost_peer(library: str, given: Callable[[ExitStack], Any]) -> None:
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed: make test-frameworks")
    with ExitStack() as running:
        wishes = json.dumps(given(running))
        ranks = [running.enter_context(started("-c", RANK, str(rank), wishes, library)) for rank in range(WORLD)]
        assert ranks[1].wait(LIMIT_S) == -9
        ends = time.monotonic() + LIMIT_S
        while ranks[0].poll() is None and ranks[2].poll() is None and time.monotonic() < ends:
            time.sleep(0.1)  # not each survivor notices
        for one in ranks:
            one.kill()
        told = [json.loads(line) for one in ranks for line in one.communicate()[0].splitlines() if line[:1] == b"{"]
    assert told and all(one["lost"] for one in told), told

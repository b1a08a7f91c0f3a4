"""Real agents and the real coordinator over TLS: trusting, refusing, coming back, waiting when told to."""

from __future__ import annotations

import asyncio
import itertools
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cluster.ports import free_port
from support.agent_rig import ROOT, Rig
from support.away import bring_back, take_away
from support.oldest_python import oldest_python
from support.trust import CoordinatorThread, MemoryApi
from trainjob_api import contract
from trainjob_operator.agents.callers import Authenticate, Caller, bearer
from trainjob_operator.cluster import Unavailable
from trainjob_operator.trust.certificates import Trust, ensure
from trainjob_operator.trust.tokens import TokenCheck

pytestmark = pytest.mark.slow

SCRIPT = "import time\ntime.sleep(600)\n"


def new_trust(api: MemoryApi | None = None, names: tuple[str, ...] = ("localhost",)) -> Trust:
    return asyncio.run(ensure(api or MemoryApi(), "system", "coordinator", names))


def env(thread: CoordinatorThread, trust: Trust, token_file: Path) -> dict[str, str]:
    return {
        contract.ENV_COORDINATOR: f"https://localhost:{thread.port}",
        contract.ENV_COORDINATOR_CA: trust.ca_pem,
        contract.ENV_TOKEN_FILE: str(token_file),
    }


def token_file(folder: Path, token: str = "t") -> Path:
    path = folder / "token"
    path.write_text(token + "\n")
    return path


def synced(rig: Rig, thread: CoordinatorThread) -> None:
    rig.wait(lambda: rig.pod_uid(0) in thread.views(), "the agent has synced over TLS")


def test_an_agent_trains_under_a_real_coordinator_over_tls(tmp_path: Path) -> None:
    """Token of its pod, CA from the environment, the Service's name checked; told to go when the job no longer has
    it.
    """
    api = MemoryApi()
    trust = new_trust()
    with CoordinatorThread(TokenCheck(api, contract.TOKEN_AUDIENCE), trust) as thread:
        path = tmp_path / "token"
        with Rig(tmp_path, script=SCRIPT, agents=0, env=env(thread, trust, path)) as rig:
            path.write_text(api.signers[0].token("digits-0", rig.pod_uid(0), now=time.time()))
            thread.commit({0: rig.pod_uid(0)})
            rig.start(0)
            synced(rig, thread)
            thread.commit({0: rig.pod_uid(0)}, slots="5")
            assert rig.exit_code(0) == contract.EXIT_REMOVED
            assert "does not answer" not in rig.text(0) and thread.refusals == {}


def test_after_a_renewal_and_a_restart_of_the_operator_it_comes_back(tmp_path: Path) -> None:
    secret = MemoryApi()
    trust = new_trust(secret)
    thread = CoordinatorThread(bearer("t"), trust, free_port())
    with Rig(tmp_path, script=SCRIPT, agents=1, env=env(thread, trust, token_file(tmp_path))) as rig:
        thread.commit({0: rig.pod_uid(0)})
        synced(rig, thread)
        thread.stop()
        rig.wait_text(0, "does not answer")
        # Another leader: the same Secret, a server certificate of its own.
        with CoordinatorThread(bearer("t"), new_trust(secret), thread.port) as after:
            synced(rig, after)
            rig.wait_text(0, "the coordinator answers again")
            assert rig.text(0).count("does not answer") == 1


def test_an_agent_that_runs_takes_the_installations_new_authority(tmp_path: Path) -> None:
    """The Secret was lost, and the pod's annotation, which is a file here, says whom to believe now."""
    first, told = new_trust(), tmp_path / "ca.pem"
    told.write_text(first.ca_pem)
    thread = CoordinatorThread(bearer("t"), first, free_port())
    variables = {**env(thread, first, token_file(tmp_path)), contract.ENV_COORDINATOR_CA_FILE: str(told)}
    with Rig(tmp_path, script=SCRIPT, agents=1, env=variables) as rig:
        thread.commit({0: rig.pod_uid(0)})
        synced(rig, thread)
        thread.stop()
        second = new_trust()
        with CoordinatorThread(bearer("t"), second, thread.port) as after:
            rig.wait_text(0, "is refused")
            assert not after.views(), "it believes whom it was told to, and nobody else"
            told.write_text(second.ca_pem)
            synced(rig, after)
            rig.wait_text(0, "the coordinator's CA is another one now")


class Counted:
    """A coordinator's check that counts."""

    def __init__(self, inner: Authenticate) -> None:
        self.inner, self.calls = inner, 0

    async def __call__(self, token: str) -> Caller | None:
        self.calls += 1
        return await self.inner(token)


@pytest.mark.parametrize(
    ("names", "foreign", "words"),
    [
        (("localhost",), True, "not of the authority that this pod was given at its start"),
        (("trainjob-coordinator.trainjob-system.svc",), False, "not for the name localhost"),
    ],
    ids=["another authority", "another name"],
)
def test_a_certificate_that_is_not_to_be_trusted_gets_no_token_and_one_line(
    tmp_path: Path, names: tuple[str, ...], foreign: bool, words: str
) -> None:
    trust = new_trust(names=names)
    handshakes: list[str | None] = []

    def begun(connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
        handshakes.append(name)

    trust.ssl_context.sni_callback = begun
    check = Counted(bearer("t"))
    with CoordinatorThread(check, trust) as thread:
        given = new_trust() if foreign else trust
        with Rig(tmp_path, script=SCRIPT, agents=1, env=env(thread, given, token_file(tmp_path))) as rig:
            rig.wait(lambda: len(handshakes) >= 4, "it has tried several times")
            lines = [line for line in rig.text(0).splitlines() if "certificate" in line]
            assert len(lines) == 1 and words in lines[0] and "training continues" in lines[0]
            assert lines[0].startswith("agent | the certificate of the coordinator at localhost:")
            assert check.calls == 0, "it never saw the token"


def test_a_refused_token_is_said_once_and_the_next_one_is_taken(tmp_path: Path) -> None:
    trust = new_trust()
    check = Counted(bearer("right"))
    with CoordinatorThread(check, trust) as thread:
        with Rig(tmp_path, script=SCRIPT, agents=1, env=env(thread, trust, token_file(tmp_path, "wrong"))) as rig:
            rig.wait(lambda: check.calls >= 4, "it has tried several times")
            rig.wait_text(0, "refuses this pod's token")
            assert rig.text(0).count("refuses this pod's token") == 1
            assert thread.views() == {}
            token_file(tmp_path, "right")  # the kubelet has renewed it
            thread.commit({0: rig.pod_uid(0)})
            synced(rig, thread)
            rig.wait_text(0, "the coordinator answers again")


def test_a_token_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    trust = new_trust()
    with CoordinatorThread(bearer("t"), trust) as thread:
        with Rig(tmp_path, script=SCRIPT, agents=1, env=env(thread, trust, tmp_path / "token")) as rig:
            rig.wait_text(0, "this pod's token cannot be read")
            token_file(tmp_path)
            synced(rig, thread)


def test_it_waits_as_long_as_it_is_asked_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The API server is silent: 503 with Retry-After. No storm, one line, and back when it is over."""
    monkeypatch.setattr("trainjob_operator.agents.coordinator.TOKEN_RETRY_S", 2.0)
    trust = new_trust()
    calls: list[float] = []

    async def silent(token: str) -> Caller | None:
        calls.append(time.monotonic())
        if len(calls) < 3:
            raise Unavailable("no answer")
        return Caller()

    with CoordinatorThread(silent, trust) as thread:
        with Rig(tmp_path, script=SCRIPT, agents=1, env=env(thread, trust, token_file(tmp_path))) as rig:
            rig.wait(lambda: len(calls) >= 3, "it came again")
            pauses = [later - sooner for sooner, later in itertools.pairwise(calls[:3])]
            assert all(pause >= 2.0 for pause in pauses), pauses
            rig.wait_text(0, "the coordinator answers again")
            assert rig.text(0).count("asks to come again later") == 1


def test_a_ca_that_is_none_is_an_installation_fault(tmp_path: Path) -> None:
    with Rig(
        tmp_path, script=SCRIPT, agents=1, env={contract.ENV_COORDINATOR_CA: "-----BEGIN CERTIFICATE-----\nnone"}
    ) as rig:
        assert rig.exit_code(0) == contract.EXIT_BAD_CONFIG
        assert "TRAINJOB_COORDINATOR_CA is no certificate in PEM form" in rig.text(0)


@pytest.mark.parametrize("complete", [False, True])
def test_an_agent_that_nobody_needs_and_nobody_hears_ends(tmp_path: Path, complete: bool) -> None:
    """The coordinator went for good. After 10 min (here: a moment) it leaves its pod, unless ranks or uploads are
    left.
    """
    script = "import trainjob\ntrainjob.barrier()\n"
    entry = [str(ROOT / "tests" / "support" / "quick_agent.py"), f"0.5@{tmp_path / 'alone'}"]
    with Rig(tmp_path, script=script, agents=1, entry=entry) as rig:
        rig.wait(lambda: rig.coordinator.reports)
        if complete:
            rig.run(1)
            rig.wait(rig.completed, "complete")
        rig.coordinator.stop()
        (tmp_path / "alone").touch()
        assert rig.exit_code(0) == (contract.EXIT_OK if complete else contract.EXIT_NO_COORDINATOR)
        assert "and nothing left to do" in rig.text(0)


def test_an_agent_with_a_rank_stays_without_a_coordinator(tmp_path: Path) -> None:
    entry = [str(ROOT / "tests" / "support" / "quick_agent.py"), f"0.5@{tmp_path / 'alone'}"]
    script = (
        "import time, pathlib, trainjob\ntrainjob.barrier()\nwhile not pathlib.Path('go').exists():\n    "
        "time.sleep(0.02)\nprint('ended', flush=True)\n"
    )
    with Rig(tmp_path, script=script, agents=1, entry=entry) as rig:
        rig.run(1)
        rig.wait(lambda: rig.running(0))
        rig.coordinator.stop()
        (tmp_path / "alone").touch()
        rig.wait_text(0, "does not answer")
        with pytest.raises(subprocess.TimeoutExpired):
            rig.exit_code(0, 2.0)  # four times its patience
        (rig.work / "go").touch()
        assert rig.exit_code(0) == contract.EXIT_OK
        assert "ended" in rig.text(0)


def test_an_agent_that_writes_the_runs_end_record_stays_until_storage_has_taken_it(tmp_path: Path) -> None:
    """Else the job would not be complete, and its last steps would be made again."""
    entry = [str(ROOT / "tests" / "support" / "quick_agent.py"), f"0.5@{tmp_path / 'alone'}"]
    script = "import os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.02)\n"
    store = tmp_path / "store"
    with Rig(tmp_path, script=script, agents=1, storage=store, entry=entry) as rig:
        rig.run(1)
        rig.wait(lambda: rig.running(0), "it runs")
        take_away(store)
        (rig.work / "go").touch()
        rig.wait(lambda: "its end record cannot be written" in (rig.report(0)["warning"] or ""), "it is tried")
        rig.coordinator.stop()
        (tmp_path / "alone").touch()
        rig.wait_text(0, "does not answer")
        with pytest.raises(subprocess.TimeoutExpired):
            rig.exit_code(0, 2.0)  # four times its patience
        bring_back(store)
        assert rig.exit_code(0) == contract.EXIT_OK
        assert (store / "runs" / "1.end.json").exists()


def test_on_python_3_9_too(tmp_path: Path) -> None:
    python = oldest_python()
    trust = new_trust()
    with CoordinatorThread(bearer("t"), trust) as thread:
        with Rig(
            tmp_path,
            script=SCRIPT,
            agents=1,
            python=python,
            command=[sys.executable, "train.py"],
            env=env(thread, trust, token_file(tmp_path)),
        ) as rig:
            synced(rig, thread)

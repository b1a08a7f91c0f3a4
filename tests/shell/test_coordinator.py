"""The coordinator in virtual time, without sockets: who is answered what, and when."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from support.clusters import NAMESPACE, manifest
from support.virtual_time import EPOCH, VirtualClock, passes, run_virtual
from trainjob_api import contract
from trainjob_api.v1alpha1 import Attempt, Boundary, Condition, TrainJob
from trainjob_operator.agents.answers import Answer
from trainjob_operator.agents.callers import Caller, bearer
from trainjob_operator.agents.coordinator import START_GRACE_S, Coordinator
from trainjob_operator.agents.reports import Report
from trainjob_operator.agents.roster import attempt_secret
from trainjob_operator.cluster import JobKey, Unavailable
from trainjob_operator.core.ends.silence import SILENT_S
from trainjob_operator.core.model import PodPhase, PodView

TOKEN = "token"
KEY = (NAMESPACE, "digits")
MASTER_KEY = b"master"


def job(
    attempt: int | None = None, *, slots: str = "0-1", version: str = "1", uid: str = "job-uid", state: str = "Running"
) -> TrainJob:
    found = TrainJob.model_validate(
        {**manifest(), "metadata": {"name": "digits", "namespace": NAMESPACE, "uid": uid, "resourceVersion": version}}
    )
    live = (
        Attempt(number=attempt, state=state, started_at=EPOCH, members="0-1", workers=2, world_size=2, cause="Started")
        if attempt
        else None
    )
    return found.model_copy(
        update={"status": found.status.model_copy(update={"slots": slots, "next_slot": 2, "attempt": live})}
    )


def pods(*slots: int) -> list[PodView]:
    return [PodView(slot=slot, name=f"digits-{slot}", uid=f"pod-{slot}", phase=PodPhase.RUNNING) for slot in slots]


class Bench:
    """A coordinator and agents that speak to it."""

    def __init__(self, **arguments: Any) -> None:
        self.owner: str | None = "job-uid"
        self.api_fails = False
        self.looks = 0
        self.turns: list[tuple[float, JobKey, float]] = []
        self.coordinator = Coordinator(
            clock=VirtualClock(),
            find_owner=self._find,
            master_key=MASTER_KEY,
            transition=4,
            **{"authenticate": bearer(TOKEN), **arguments},
        )
        self.progress: list[JobKey] = []
        self.hurried = 0
        self.coordinator.listen(
            lambda key, delay_s: self.turns.append((now(), key, delay_s)), self.progress.append, self._hurries
        )

    def _hurries(self, key: JobKey) -> None:
        self.hurried += 1
        self.turns.append((now(), key, 0.0))

    async def _find(self, key: JobKey) -> str | None:
        self.looks += 1
        await asyncio.sleep(0.01)
        if self.api_fails:
            raise Unavailable("503")
        return self.owner

    def report(self, slot: int = 0, seq: int = 1, boot: int = 1, **fields: Any) -> dict[str, Any]:
        identity = {
            "namespace": NAMESPACE,
            "job": "digits",
            "job_uid": "job-uid",
            "slot": slot,
            "pod": f"digits-{slot}",
            "pod_uid": f"pod-{slot}",
        }
        return {**identity, "boot": boot, "seq": seq, "address": f"10.0.0.{slot}:7000", "acknowledged": None, **fields}

    async def post(self, slot: int = 0, seq: int = 1, token: str = TOKEN, **fields: Any) -> Answer:
        return await self.coordinator.serve(token, json.dumps(self.report(slot, seq, **fields)).encode())

    async def told(self, slot: int = 0, seq: int = 1, **fields: Any) -> dict[str, Any]:
        answer = await self.post(slot, seq, **fields)
        assert answer.status == 200, answer
        return dict(answer.body["instruction"])

    def waiting(self, slot: int = 0, seq: int = 1, **fields: Any) -> asyncio.Task[dict[str, Any]]:
        return asyncio.ensure_future(self.told(slot, seq, **fields))


def now() -> float:
    return asyncio.get_running_loop().time()


def on_bench(test: Callable[[Bench], Any], **arguments: Any) -> None:
    async def main() -> None:
        await test(Bench(**arguments))

    run_virtual(main())


@pytest.mark.parametrize("spares", ["2", ""])
def test_that_who_waits_beside_an_attempt_is_warm_matters_and_of_others_it_does_not(spares: str) -> None:
    """A spare, or a worker by which the job is to grow."""

    async def test(bench: Bench) -> None:
        known = job(1, slots="0-2")
        status = known.status.model_copy(update={"spares": spares, "next_slot": 3})
        bench.coordinator.commit(known.model_copy(update={"status": status}), pods(0, 1, 2))
        for slot, wakes in ((1, False), (2, True)):
            await bench.told(slot, warming=True)
            bench.turns.clear()
            await bench.told(slot, seq=2, warming=False)
            assert bool(bench.turns) is wakes, slot

    on_bench(test)


# --- When it answers --------------------------------------------------------------------------------------------------


def test_an_instruction_that_is_not_acknowledged_is_answered_at_once() -> None:
    async def test(bench: Bench) -> None:
        bench.coordinator.commit(job(), pods(0, 1))
        hold = await bench.told()
        assert hold["do"] == contract.DO_HOLD
        assert now() == 0.0
        assert (await bench.post(seq=2)).body["transition"] == 4

    on_bench(test)


def test_a_pod_that_no_list_has_shown_yet_is_told_nothing() -> None:
    """Not that its slot is no part of the job: the list may be older than the pod."""

    async def test(bench: Bench) -> None:
        bench.coordinator.commit(job(), pods(0, 1))
        assert (await bench.told(5)) == {"do": contract.DO_WAIT}

    on_bench(test)


def test_an_acknowledged_one_is_held_for_the_long_poll() -> None:
    async def test(bench: Bench) -> None:
        bench.coordinator.commit(job(), pods(0, 1))
        hold = await bench.told()
        assert await bench.told(seq=2, acknowledged=hold) == hold
        assert now() == contract.LONG_POLL_S

    on_bench(test)


def test_a_commit_answers_those_whose_instruction_changed() -> None:
    async def test(bench: Bench) -> None:
        bench.coordinator.commit(job(), pods(0, 1))
        hold = await bench.told(0)
        await bench.told(1)
        polls = [bench.waiting(slot, 2, acknowledged=hold) for slot in (0, 1)]
        await asyncio.sleep(3.0)
        bench.coordinator.commit(job(1, version="2"), pods(0, 1))
        first, second = await asyncio.gather(*polls)
        assert now() == 3.0
        assert (first["do"], first["attempt"], first["index"], first["workers"]) == (contract.DO_RUN, 1, 0, 2)
        assert second["index"] == 1 and second["leader"] == "10.0.0.0:7000"

    on_bench(test)


def test_a_commit_that_changes_nothing_for_an_agent_leaves_it_waiting() -> None:
    async def test(bench: Bench) -> None:
        bench.coordinator.commit(job(), pods(0, 1))
        hold = await bench.told()
        poll = bench.waiting(seq=2, acknowledged=hold)
        await asyncio.sleep(3.0)
        bench.coordinator.commit(job(version="2"), pods(0, 1))
        await poll
        assert now() == contract.LONG_POLL_S

    on_bench(test)


@pytest.mark.parametrize("newer", [{"seq": 3}, {"seq": 1, "boot": 2}], ids=["higher seq", "higher boot"])
def test_a_newer_report_answers_the_older_poll(newer: dict[str, int]) -> None:
    async def test(bench: Bench) -> None:
        bench.coordinator.commit(job(), pods(0, 1))
        hold = await bench.told()
        older = bench.waiting(seq=2, acknowledged=hold)
        await asyncio.sleep(5.0)
        later = bench.waiting(**newer, acknowledged=hold)
        await older
        assert now() == 5.0
        await later
        assert now() == 5.0 + contract.LONG_POLL_S

    on_bench(test)


@pytest.mark.parametrize(("jobs", "pace_s"), [(3, 1.0), (600, 3.0), (2500, 10.0)])
def test_the_more_jobs_there_are_the_less_often_each_is_to_tell_of_progress(jobs: int, pace_s: float) -> None:
    async def test(bench: Bench) -> None:
        wait = {"do": contract.DO_WAIT}
        held = [bench.post(job=f"job-{number}", job_uid=f"job-{number}", acknowledged=wait) for number in range(jobs)]
        answers = await asyncio.gather(*held)
        assert now() == contract.LONG_POLL_S
        assert answers[0].body["pace_s"] == pytest.approx(pace_s, abs=0.01)

    on_bench(test)


def test_an_older_report_is_refused_and_changes_nothing() -> None:
    async def test(bench: Bench) -> None:
        bench.coordinator.commit(job(), pods(0, 1))
        await bench.told(seq=1, boot=2, attempt=5)
        for older in ({"seq": 9, "boot": 1}, {"seq": 0, "boot": 2}):
            answer = await bench.post(**older, attempt=4)
            assert answer.status == 409 and "older" in answer.body["error"]
        assert bench.coordinator.views(KEY)["pod-0"].attempt == 5
        assert bench.coordinator.refusals["outdated"] == 2

    on_bench(test)


def test_the_leaders_new_address_reaches_those_who_wait_for_it() -> None:
    async def test(bench: Bench) -> None:
        bench.coordinator.commit(job(1), pods(0, 1))
        wait = await bench.told(1)
        assert wait["do"] == contract.DO_WAIT
        member = bench.waiting(1, 2, acknowledged=wait)
        await asyncio.sleep(2.0)
        await bench.told(0)
        assert (await member)["leader"] == "10.0.0.0:7000"
        assert 2.0 <= now() < 2.1

    on_bench(test)


@pytest.mark.parametrize(("last", "held_s"), [(True, 0.0), (False, contract.LONG_POLL_S)])
def test_a_last_word_is_not_held_and_nothing_else_of_an_agent_that_is_to_leave(last: bool, held_s: float) -> None:
    """What it still has to do may take a while: it does not ask all the time meanwhile."""

    async def test(bench: Bench) -> None:
        bench.coordinator.commit(job(slots="1"), pods(0, 1))
        leave = await bench.told()
        assert leave["do"] == contract.DO_EXIT
        began = now()
        await bench.told(seq=2, acknowledged=leave, last=last)
        assert now() - began == pytest.approx(held_s)

    on_bench(test)


def test_stop_answers_open_polls() -> None:
    async def test(bench: Bench) -> None:
        bench.coordinator.commit(job(), pods(0, 1))
        hold = await bench.told()
        poll = bench.waiting(seq=2, acknowledged=hold)
        await asyncio.sleep(1.0)
        await bench.coordinator.stop()
        assert await poll == hold
        assert now() == 1.0

    on_bench(test)


# --- What it answers from ---------------------------------------------------------------------------------------------


def test_the_secret_comes_with_run_alone_and_is_of_job_and_attempt() -> None:
    async def test(bench: Bench) -> None:
        bench.coordinator.commit(job(), pods(0, 1))
        assert "secret" not in await bench.told()
        bench.coordinator.commit(job(1, version="2"), pods(0, 1))
        assert (await bench.told(seq=2))["secret"] == attempt_secret(MASTER_KEY, "job-uid", 1)
        secrets = {attempt_secret(MASTER_KEY, uid, attempt) for uid in ("job-uid", "other-uid") for attempt in (1, 2)}
        assert len(secrets) == 4

    on_bench(test)


def test_a_pod_that_no_list_has_shown_waits() -> None:
    async def test(bench: Bench) -> None:
        bench.coordinator.commit(job(1), pods(0))
        assert await bench.told(1) == {"do": contract.DO_WAIT}
        assert await bench.told(0, pod_uid="another-pod-of-that-slot") == {"do": contract.DO_WAIT}
        assert bench.looks == 0

    on_bench(test)


def test_nobody_is_sent_home_before_the_job_could_be_read() -> None:
    async def test(bench: Bench) -> None:
        bench.owner = None
        assert (await bench.told())["do"] == contract.DO_WAIT
        assert bench.looks == 0, "the first seconds after the start"
        await asyncio.sleep(START_GRACE_S)
        bench.api_fails = True
        assert (await bench.told(seq=2))["do"] == contract.DO_WAIT
        bench.api_fails = False
        gone = await bench.told(seq=3)
        assert (gone["do"], gone["exit_code"]) == (contract.DO_EXIT, contract.EXIT_REMOVED)
        assert bench.looks == 2

    on_bench(test)


def test_a_job_that_a_fresh_read_finds_is_waited_for_and_enqueued() -> None:
    async def test(bench: Bench) -> None:
        await asyncio.sleep(START_GRACE_S)
        assert (await bench.told())["do"] == contract.DO_WAIT
        assert (KEY, 0.0) in [turn[1:] for turn in bench.turns]

    on_bench(test)


@pytest.mark.parametrize("state", ["there", "gone", "silent"])
def test_agents_that_come_at_once_share_one_look_for_their_job(state: str) -> None:
    """After a change of leadership all come before any turn has seen their job."""

    async def test(bench: Bench) -> None:
        bench.owner, bench.api_fails = None if state == "gone" else "job-uid", state == "silent"
        await asyncio.sleep(START_GRACE_S)
        polls = [bench.waiting(slot) for slot in range(8)]
        await asyncio.sleep(0.005)
        polls[0].cancel()
        words = await asyncio.gather(*polls[1:])
        assert {word["do"] for word in words} == {contract.DO_EXIT if state == "gone" else contract.DO_WAIT}
        assert bench.looks == 1
        await bench.told(seq=2)
        assert bench.looks == (1 if state == "gone" else 2), "nothing of it is kept"

    on_bench(test)


def test_a_look_that_was_begun_for_another_job_of_that_name_sends_nobody_home() -> None:
    """The job may have been made again after the API server answered, and before the answer came."""

    async def test(bench: Bench) -> None:
        bench.owner = None
        await asyncio.sleep(START_GRACE_S)
        older = bench.waiting(0)
        await asyncio.sleep(0.005)
        polls = [bench.waiting(slot, job_uid="second-uid") for slot in (1, 2)]
        await asyncio.sleep(0.007)
        bench.owner = "second-uid"
        assert (await older)["do"] == contract.DO_EXIT
        assert {(await poll)["do"] for poll in polls} == {contract.DO_WAIT} and bench.looks == 2

    on_bench(test)


def test_agents_of_a_deleted_job_are_sent_home_at_once() -> None:
    async def test(bench: Bench) -> None:
        bench.coordinator.commit(job(1), pods(0, 1))
        run = await bench.told()
        poll = bench.waiting(seq=2, acknowledged=run)
        await asyncio.sleep(1.0)
        bench.coordinator.forget(KEY)
        assert (await poll)["exit_code"] == contract.EXIT_REMOVED
        assert now() == 1.0
        assert bench.looks == 0 and not bench.coordinator.views(KEY)

    on_bench(test)


def test_of_two_states_of_a_job_the_newer_one_stays() -> None:
    """A turn that looked before progress was written commits its look after it."""

    async def test(bench: Bench) -> None:
        bench.coordinator.commit(job(1, version="10"), pods(0))
        bench.coordinator.commit(job(version="9"), pods(0, 1))
        assert (await bench.told(0))["do"] == contract.DO_RUN
        assert (await bench.told(1))["do"] == contract.DO_RUN, "of its pods the look is the newer one"
        bench.coordinator.commit(job(uid="second-uid", version="12"), pods(0))
        assert (await bench.told(0, seq=3))["exit_code"] == contract.EXIT_REMOVED

    on_bench(test)


def test_a_look_at_the_job_that_bore_the_name_before_sends_nobody_home() -> None:
    """The watch may be behind a read."""

    async def test(bench: Bench) -> None:
        bench.coordinator.commit(job(1, version="12"), pods(0))
        bench.coordinator.commit(job(uid="first-uid", version="9"), ())
        assert (await bench.told(0))["do"] == contract.DO_RUN

    on_bench(test)


def test_agents_of_a_recreated_jobs_predecessor_are_sent_home() -> None:
    async def test(bench: Bench) -> None:
        bench.coordinator.commit(job(1), pods(0, 1))
        run = await bench.told()
        poll = bench.waiting(seq=2, acknowledged=run)
        await asyncio.sleep(1.0)
        bench.coordinator.commit(job(uid="second-uid", version="9"), [])
        assert (await poll)["exit_code"] == contract.EXIT_REMOVED

    on_bench(test)


# --- What it remembers, and whose turn it asks for --------------------------------------------------------------------


def test_turns_are_asked_for_when_something_matters() -> None:
    async def test(bench: Bench) -> None:
        def asked() -> list[float]:
            delays = [delay for _, _, delay in bench.turns]
            bench.turns.clear()
            return delays

        bench.coordinator.commit(job(), pods(0))
        wait = await bench.told(clock=EPOCH.timestamp())
        assert asked() == [0.0], "a new agent"
        same = {"acknowledged": wait}
        await bench.told(seq=2, clock=EPOCH.timestamp() + 5, **same)
        assert asked() == [], "only the clock"
        await bench.told(seq=3, progress={"position": 1, "time": 1.0}, checkpoint_count=1, **same)
        assert (asked(), bench.progress) == ([], [KEY]), "mere progress asks for no turn"
        progress = {"progress": {"position": 1, "time": 1.0}, "checkpoint_count": 1}
        trains = {"ranks": [{"rank": 0, "state": "running"}], "quiet": False, **progress, **same}
        await bench.told(seq=4, **trains)
        assert asked() == [0.0]
        await bench.told(seq=5, uploads=1, **trains)
        assert asked() == [], "a checkpoint that is being stored: as often as the script saves"
        ended = {**trains, "ranks": [{"rank": 0, "state": "ended", "kind": "exit"}], "quiet": True}
        await bench.told(seq=6, uploads=1, **ended)
        assert asked() == [0.0]
        await bench.told(seq=7, uploads=0, **ended)
        assert asked() == [0.0], "the next attempt may wait for what a removed worker stores"

    on_bench(test)


def test_the_view_is_of_the_latest_boot_and_carries_the_clocks_difference() -> None:
    async def test(bench: Bench) -> None:
        bench.coordinator.commit(job(), pods(0, 1))
        await bench.told(boot=1, attempt=3)
        await asyncio.sleep(10.0)
        await bench.told(seq=1, boot=2, clock=EPOCH.timestamp() + 4.0)
        view = bench.coordinator.views(KEY)["pod-0"]
        assert (view.boot, view.attempt) == (2, 0)
        assert view.clock_offset == timedelta(seconds=6)
        assert view.heard_at == EPOCH + timedelta(seconds=10)

    on_bench(test)


def test_words_of_pods_that_are_gone_are_dropped_after_a_while() -> None:
    async def test(bench: Bench) -> None:
        bench.coordinator.commit(job(), pods(0, 1))
        await bench.told(0)
        await bench.told(1)
        bench.coordinator.commit(job(version="2"), pods(1))
        assert set(bench.coordinator.views(KEY)) == {"pod-0", "pod-1"}, "its pod may not be listed yet"
        await asyncio.sleep(400.0)
        bench.coordinator.commit(job(version="3"), pods(1))
        assert set(bench.coordinator.views(KEY)) == {"pod-1"}

    on_bench(test)


# --- Who may speak ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["", "wrong", "tok\udcffen"])
def test_a_wrong_token_is_refused(token: str) -> None:
    async def test(bench: Bench) -> None:
        answer = await bench.post(token=token)
        assert answer.status == 401 and "token" in answer.body["error"]
        assert bench.coordinator.refusals == {"wrong token": 1} and not bench.coordinator.views(KEY)

    on_bench(test)


def test_a_token_of_one_pod_speaks_for_no_other() -> None:
    async def only_pod_1(token: str) -> Caller | None:
        return Caller(pod_uid="pod-1")

    async def test(bench: Bench) -> None:
        bench.coordinator.commit(job(), pods(0, 1))
        assert (await bench.post(0)).status == 403
        assert (await bench.post(1)).status == 200
        assert set(bench.coordinator.views(KEY)) == {"pod-1"}

    on_bench(test, authenticate=only_pod_1)


def test_what_is_no_report_is_refused() -> None:
    async def test(bench: Bench) -> None:
        answer = await bench.coordinator.serve(TOKEN, b"{}")
        assert answer.status == 400 and "namespace" in answer.body["error"]
        assert bench.coordinator.refusals == {"malformed": 1}

    on_bench(test)


# --- Many -------------------------------------------------------------------------------------------------------------


def test_a_recheck_of_all_polls_looks_up_two_words_each() -> None:
    """Not all of them: a job may have ten thousand."""

    class Counted(dict[str, Any]):
        looked = 0

        def __getitem__(self, uid: str) -> Any:
            Counted.looked += 1
            return super().__getitem__(uid)

    async def test(bench: Bench) -> None:
        count = 200
        bench.coordinator.commit(job(slots=f"0-{count - 1}"), pods(*range(count)))
        for slot in range(count):
            await bench.told(slot)
        polls = [bench.waiting(slot, 2, acknowledged={"do": contract.DO_HOLD, "grace_s": 0.0}) for slot in range(count)]
        await passes(1.0)
        heard = bench.coordinator._roster._heard
        heard[KEY] = Counted(heard[KEY])
        running = job(1, slots=f"0-{count - 1}", version="2")
        attempt = running.status.attempt
        assert attempt is not None
        whole = attempt.model_copy(update={"members": f"0-{count - 1}", "workers": count, "world_size": count})
        status = running.status.model_copy(update={"attempt": whole})
        bench.coordinator.commit(running.model_copy(update={"status": status}), pods(*range(count)))
        assert [word["index"] for word in await asyncio.gather(*polls)] == list(range(count))
        assert Counted.looked <= 6 * count

    on_bench(test)


class Counted(dict[str, int]):
    """Slots by UID; whoever goes through all of them is counted."""

    passed = 0

    def items(self) -> Any:
        Counted.passed += len(self)
        return super().items()


@pytest.mark.parametrize("leads", [True, False])
def test_only_the_leaders_word_has_all_polls_looked_through(leads: bool) -> None:
    """Where thousands begin at once, each of them says something that matters."""

    async def test(bench: Bench) -> None:
        running = job(1)
        bench.coordinator.commit(running, pods(0, 1))
        await bench.told(0)
        await bench.told(1)
        await passes(1.0)
        rechecked: list[JobKey] = []
        bench.coordinator._recheck = rechecked.append  # type: ignore[method-assign]
        await bench.told(0 if leads else 1, 2, joined=True, quiet=False)
        await passes(1.0)
        assert rechecked == ([KEY] if leads else [])

    on_bench(test)


def test_what_one_worker_says_does_not_cost_a_look_at_all_others() -> None:
    async def test(bench: Bench) -> None:
        bench.coordinator.commit(job(1), pods(0, 1))
        await bench.told(0)
        await bench.told(1)
        known = bench.coordinator._roster._committed[KEY]
        object.__setattr__(known, "slots", Counted(known.slots))
        broken = {"rank": 1, "state": contract.RANK_ENDED, "kind": contract.END_EXIT}
        await bench.told(1, 2, attempt=1, ranks=[broken], lost_peers=[0])
        assert bench.coordinator._asked[KEY] == {"pod-0"} and Counted.passed == 0

    on_bench(test)


def test_an_open_poll_keeps_nothing_of_its_report_but_who_asks() -> None:
    async def test(bench: Bench) -> None:
        bench.coordinator.commit(job(), pods(0, 1))
        hold = await bench.told()
        poll = bench.waiting(seq=2, acknowledged=hold, ranks=[{"rank": n} for n in range(200)])
        await passes(1.0)
        gc.collect()
        assert [found for found in gc.get_objects() if isinstance(found, Report)] == []
        await poll

    on_bench(test)


def test_two_hundred_agents_hear_of_an_attempt() -> None:
    async def test(bench: Bench) -> None:
        count = 200
        waiting = job(slots=f"0-{count - 1}")
        bench.coordinator.commit(waiting, pods(*range(count)))
        holds = await asyncio.gather(*(bench.told(slot) for slot in range(count)))
        polls = [bench.waiting(slot, 2, acknowledged=holds[slot]) for slot in range(count)]
        await asyncio.sleep(1.0)
        attempt = Attempt(
            number=1,
            state="Running",
            started_at=EPOCH,
            members=f"0-{count - 1}",
            workers=count,
            world_size=count,
            cause="Started",
        )
        running = waiting.model_copy(
            update={
                "status": waiting.status.model_copy(update={"attempt": attempt}),
                "metadata": waiting.metadata.model_copy(update={"resource_version": "2"}),
            }
        )
        bench.coordinator.commit(running, pods(*range(count)))
        told = await asyncio.gather(*polls)
        assert now() == 1.0
        assert [word["index"] for word in told] == list(range(count))

    on_bench(test)


# --- Silence ----------------------------------------------------------------------------------------------------------


def test_a_turn_is_asked_for_when_an_agent_has_fallen_silent_and_for_no_poll_that_comes() -> None:
    async def test(bench: Bench) -> None:
        bench.coordinator.commit(job(), pods(0, 1))
        hold = await bench.told()
        await bench.told(slot=1)
        bench.turns.clear()
        for seq in (2, 3, 4):  # slot 0 polls on, slot 1 is silent
            await bench.told(seq=seq, acknowledged=hold)
            bench.coordinator.commit(job(), pods(0, 1))
            if seq == 2:
                assert not bench.turns
        assert len(bench.turns) == 1, "once, and not again while it stays silent"
        await passes(SILENT_S + 1)
        assert len(bench.turns) == 2, "now slot 0 is silent too"
        await passes(600.0)
        assert len(bench.turns) == 2

    on_bench(test)


@pytest.mark.parametrize(("silent_s", "wakes"), [(SILENT_S + 1, True), (SILENT_S - 1, False)])
def test_that_a_silent_agent_speaks_again_is_news_though_it_says_nothing_new(silent_s: float, wakes: bool) -> None:
    """It may be the one for whom a job waits to grow, and what it tells is that it is there."""

    async def test(bench: Bench) -> None:
        bench.coordinator.commit(job(), pods(0, 1))
        hold = await bench.told(slot=1)
        await passes(silent_s)
        bench.turns.clear()
        again = bench.waiting(slot=1, seq=2, acknowledged=hold)
        await passes(0.1)
        assert bool(bench.turns) is wakes
        await again

    on_bench(test)


def test_that_a_worker_is_warm_matters_while_its_job_is_still_being_read() -> None:
    """The look that is under way may have taken its word before."""

    async def test(bench: Bench) -> None:
        await bench.told(slot=1, warming=True)
        bench.turns.clear()
        await bench.told(slot=1, seq=2, warming=False)
        assert bench.turns

    on_bench(test)


def test_an_agent_that_this_leader_has_never_heard_is_silent_from_its_beginning() -> None:
    async def test(bench: Bench) -> None:
        bench.coordinator.commit(job(), pods(0))
        await passes(SILENT_S - 0.1)
        assert not bench.turns
        await passes(0.3)
        assert len(bench.turns) == 1

    on_bench(test)


@pytest.mark.parametrize("end", ["finished", "forgotten", "stopped"])
def test_nobody_is_waited_for_after_the_end(end: str) -> None:
    async def test(bench: Bench) -> None:
        bench.coordinator.commit(job(), pods(0))
        if end == "finished":
            done = Condition(type="Complete", status="True", reason="x", last_transition_time=EPOCH)
            over = job()
            bench.coordinator.commit(
                over.model_copy(update={"status": over.status.model_copy(update={"conditions": [done]})}), pods(0)
            )
        elif end == "forgotten":
            bench.coordinator.forget((NAMESPACE, "digits"))
        else:
            await bench.coordinator.stop()
        await passes(SILENT_S + 1)
        assert not bench.turns

    on_bench(test)


def test_a_lost_peer_that_polls_is_asked_to_speak_at_once() -> None:
    async def test(bench: Bench) -> None:
        bench.coordinator.commit(job(attempt=1), pods(0, 1))
        await bench.told(slot=0)
        poll = bench.waiting(slot=1, seq=2, acknowledged=await bench.told(slot=1), attempt=1)
        await passes(1.0)
        assert not poll.done()
        await bench.told(slot=0, seq=2, attempt=1, lost_peers=[1])
        await asyncio.wait_for(poll, 1.0)

    on_bench(test)


def test_rank_0s_agent_is_asked_to_speak_when_a_rank_of_another_breaks() -> None:
    async def test(bench: Bench) -> None:
        bench.coordinator.commit(job(attempt=1), pods(0, 1))
        poll = bench.waiting(slot=0, seq=2, acknowledged=await bench.told(slot=0), attempt=1)
        await bench.told(
            slot=1, attempt=1, ranks=[{"rank": 1, "state": contract.RANK_ENDED, "kind": contract.END_STOPPED}]
        )
        await passes(1.0)
        assert not poll.done(), "it stopped its ranks because it was told to"
        assert bench.hurried == 0
        await bench.told(
            slot=1,
            seq=2,
            attempt=1,
            ranks=[{"rank": 1, "state": contract.RANK_ENDED, "kind": contract.END_SIGNAL, "signal": 9}],
        )
        await asyncio.wait_for(poll, 1.0)
        assert bench.hurried == 1, "a failure waits for no progress"
        bench.turns.clear()
        bench.waiting(slot=0, seq=3, acknowledged=await bench.told(slot=0, seq=3, attempt=1), attempt=1)
        assert bench.hurried == 2, "nor does that word"
        assert [delay for _, _, delay in bench.turns] == [0.0], (
            "a turn waits for that word, even if it says nothing new"
        )

    on_bench(test)


def test_an_agent_between_two_polls_is_asked_too_and_its_next_word_takes_a_turn() -> None:
    """Else the job would wait for that word until a second is over: it has come by then, and nobody looks."""

    async def test(bench: Bench) -> None:
        bench.coordinator.commit(job(attempt=1), pods(0, 1))
        told = await bench.told(slot=0, attempt=1)
        broken = {"rank": 1, "state": contract.RANK_ENDED, "kind": contract.END_SIGNAL, "signal": 9}
        await bench.told(slot=1, attempt=1, ranks=[broken])
        bench.turns.clear()
        bench.waiting(slot=0, seq=2, acknowledged=told, attempt=1)
        await passes(0.1)
        assert [delay for _, _, delay in bench.turns] == [0.0]

    on_bench(test)


def test_who_is_asked_and_never_speaks_again_is_forgotten_with_its_pod() -> None:
    async def test(bench: Bench) -> None:
        broken = {"rank": 1, "state": contract.RANK_ENDED, "kind": contract.END_SIGNAL, "signal": 9}
        for uid in range(50):
            leader = PodView(slot=0, name="digits-0", uid=f"pod-{uid}", phase=PodPhase.RUNNING)
            other = PodView(slot=1, name="digits-1", uid=f"other-{uid}", phase=PodPhase.RUNNING)
            bench.coordinator.commit(job(attempt=1, version=str(uid)), [leader, other])
            await bench.told(slot=1, pod_uid=f"other-{uid}", attempt=1, ranks=[broken])
            assert bench.coordinator._asked == {KEY: {f"pod-{uid}"}}
        bench.coordinator.commit(job(attempt=1, version="1000000"), [])
        assert not bench.coordinator._asked

    on_bench(test)


@pytest.mark.parametrize("leaving", ["1", "0-1", ",".join(str(slot) for slot in range(1, 2000, 2))])
def test_rank_0s_agent_that_knows_who_leaves_is_answered_no_more(leaving: str) -> None:
    """Whatever an instruction brings, an agent that has acknowledged it is held: else both would talk without end."""

    async def test(bench: Bench) -> None:
        running = job(1, slots="0-1999")
        boundary = Boundary(cause=contract.REASON_PREEMPTED, since=EPOCH, leaving=leaving, gone_by=EPOCH)
        attempt = running.status.attempt
        assert attempt is not None
        attempt = attempt.model_copy(update={"members": "0-1999", "workers": 2000, "world_size": 2000})
        status = running.status.model_copy(update={"attempt": attempt, "boundary": boundary})
        bench.coordinator.commit(running.model_copy(update={"status": status}), pods(*range(2000)))
        word = await bench.told()
        assert word["leaving"] and word["gone_at"] and now() == 0.0
        assert await bench.told(seq=2, acknowledged=word) == word
        assert now() == contract.LONG_POLL_S

    on_bench(test)

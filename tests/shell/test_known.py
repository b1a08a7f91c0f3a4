"""What the watch has told: any order comes to the same, a gap voids it, and whoever doubts reads."""

from __future__ import annotations

import itertools
import json
from contextlib import ExitStack
from datetime import datetime
from typing import Any

import pytest

from support.clusters import NAMESPACE, manifest, plain_pod, stored_job
from support.virtual_time import EPOCH
from trainjob_operator.cluster import Manifest, Seen
from trainjob_operator.core.model import ServiceView
from trainjob_operator.core.pods.objects import headless_service
from trainjob_operator.loop.known import Known
from trainjob_operator.loop.known_job import READ_AGAIN_S
from trainjob_operator.loop.observe import Sight, in_order
from trainjob_operator.manifests import UnreadableJob, pod_view, read_job
from trainjob_operator.memory import MemoryCluster


class Still:
    """A clock that stands."""

    def now(self) -> datetime:
        return EPOCH

    steady = now


KEY = (NAMESPACE, "digits")
SERVICE = ServiceView(name="digits", owned=True)


class Bench:
    """A job with pods, whose states are told to a `Known`."""

    def __init__(self, slots: str = "0") -> None:
        self.cluster = MemoryCluster(Still())  # type: ignore[arg-type]
        stored_job(self.cluster)
        self.known = Known()
        self.job = self.stored(slots=slots)
        self._first = read_job(self.job)

    def stored(self, **status: Any) -> Manifest:
        """The job, with a new status."""
        now = self.cluster.job(*KEY)
        self.cluster._store.update("TrainJob", *KEY, lambda job: job.update(status={**now["status"], **status}))
        return self.cluster.job(*KEY)

    def pod(self, name: str = "digits-0", **changes: Any) -> Manifest:
        """A new pod of the job."""
        pod = plain_pod(name, owner=self.job, slot=int(name.rpartition("-")[2]))
        pod["metadata"]["namespace"] = NAMESPACE
        return self.cluster.add_pod({**pod, **changes})

    def service(self, **spec: Any) -> Manifest:
        """Its Service as it is, made if it is not there; or with another spec."""
        if not self.cluster._store.select("Service"):
            self.cluster._store.create("Service", {"kind": "Service", **headless_service(self._first)})
        return self.cluster._store.update("Service", *KEY, lambda found: found["spec"].update(spec))

    def service_seen(self, now: float) -> tuple[bool, float]:
        """Whether the job has its Service as far as is known, and how old that is."""
        sight = self.known.sight(KEY, now)
        assert sight is not None
        return sight.service is not None and sight.service.owned, sight.service_age_s

    def phase(self, name: str, phase: str) -> Manifest:
        return self.cluster.set_pod_status(NAMESPACE, name, {"phase": phase})

    def tell(self, *manifests: Manifest, gone: bool = False) -> list[bool]:
        return [self.known.told(Seen(found["kind"], KEY, found, gone)) for found in manifests]

    def began(self, *manifests: Manifest) -> Bench:
        self.known.begin()
        self.tell(self.job, *manifests)
        assert self.known.complete(0.0) == [KEY]
        self.known.served(KEY, self.service(), 0.0)
        return self

    def read(self, *pods: Manifest) -> tuple[Sight, list[Manifest]]:
        """What a turn's list brings."""
        job = self.known.job(KEY)
        assert job is not None
        views = in_order(pod_view(pod, job) for pod in pods)
        return Sight(job=job, pods=views, service=SERVICE, read=True), list(pods)

    def phases(self, now: float = 0.0) -> dict[str, str] | None:
        sight = self.known.sight(KEY, now)
        return {pod.name: pod.phase.value for pod in sight.pods} if sight is not None else None


def test_what_was_listed_is_known_without_a_read() -> None:
    bench = Bench("0-1")
    bench.began(bench.pod(), bench.pod("digits-1"))
    assert bench.phases() == {"digits-0": "Pending", "digits-1": "Pending"}


def test_states_of_a_pod_in_any_order_come_to_the_newest() -> None:
    for order in itertools.permutations(range(3)):
        bench = Bench()
        states = [bench.pod(), bench.phase("digits-0", "Running"), bench.phase("digits-0", "Failed")]
        bench.began(*(states[place] for place in order))
        assert bench.phases() == {"digits-0": "Failed"}, order


def test_only_news_is_news() -> None:
    bench = Bench()
    pod = bench.pod()
    bench.began(pod)
    running = bench.phase("digits-0", "Running")
    job = bench.stored(phase="Running")
    assert bench.tell(running, running, pod, job, job, bench.job) == [True, False, False, True, False, False]
    assert bench.tell(running, gone=True) + bench.tell(running, gone=True) == [True, False]


def test_our_own_write_and_create_are_no_news_when_the_watch_tells_of_them() -> None:
    bench = Bench()
    bench.began()
    pod, job = bench.pod(), bench.stored(phase="Pending")
    bench.known.created(KEY, [pod])
    bench.known.written(read_job(job))
    assert bench.tell(pod, job) == [False, False]
    sight = bench.known.sight(KEY, 0.0)
    assert sight is not None and sight.job.status.phase == "Pending" and len(sight.pods) == 1


def test_our_own_write_is_no_news_when_the_watch_is_faster_than_its_answer() -> None:
    bench = Bench()
    bench.began()
    with bench.known.writing(KEY) as writing:
        ours = bench.stored(phase="Pending")
        assert bench.tell(ours) == [False]
        bench.known.written(read_job(ours))
    assert not writing.news
    job = bench.known.job(KEY)
    assert job is not None and job.status.phase == "Pending"


def test_what_others_write_while_a_write_of_ours_is_under_way_is_news() -> None:
    bench = Bench()
    bench.began()
    with bench.known.writing(KEY) as writing:
        ours = bench.stored(phase="Pending")
        theirs = bench.stored(phase="Running")
        assert bench.tell(ours, theirs) == [False, False]
        bench.known.written(read_job(ours))
    assert writing.news
    job = bench.known.job(KEY)
    assert job is not None and job.status.phase == "Running"


def test_of_two_writes_under_way_the_first_hears_what_is_told() -> None:
    """Progress is being written as a turn begins that writes too: one of the two is refused."""
    bench = Bench()
    bench.began()
    later = ExitStack()
    with bench.known.writing(KEY) as progress:
        turn = later.enter_context(bench.known.writing(KEY))
        ours = bench.stored(phase="Pending")
        assert bench.tell(ours) == [False]
        bench.known.written(read_job(ours))
    theirs = bench.stored(phase="Running")
    assert bench.tell(theirs) == [True], "nobody is waited for who does not hear"
    later.close()
    assert not progress.news and not turn.news and not bench.known._writings


def test_a_write_whose_answer_is_lost_is_news_when_the_watch_tells_of_it() -> None:
    bench = Bench()
    bench.began()
    with pytest.raises(TimeoutError), bench.known.writing(KEY) as writing:
        bench.tell(bench.stored(phase="Pending"))
        raise TimeoutError
    assert writing.news


@pytest.mark.parametrize("edit", ["spec", "annotation", "deletion"])
@pytest.mark.parametrize("known_by", ["watch", "read"])
def test_what_people_do_while_a_write_of_ours_hangs_is_heard_at_once(edit: str, known_by: str) -> None:
    bench = Bench("")
    bench.began()
    if known_by == "read":
        bench.known.doubt(KEY)
        with bench.known.reading(KEY) as reading:
            job = read_job(bench.job)
            reading.take(Sight(job=job, pods=(), service=SERVICE, read=True), [], 0.0)
    with bench.known.writing(KEY) as writing:
        ours = bench.stored(phase="Pending")
        assert bench.tell(ours) == [False]
        if edit == "spec":
            theirs = bench.cluster.update_job_spec(*KEY, {"workers": 4})
        elif edit == "annotation":
            theirs = bench.cluster.annotate_job(*KEY, {"trainjob.dev/restart": "now"})
        else:
            theirs = bench.cluster.annotate_job(*KEY, {})
            theirs["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
        assert bench.tell(theirs) == [True]
        job = bench.known.job(KEY)  # type: ignore[assignment]
        assert job is not None and job.metadata.resource_version == theirs["metadata"]["resourceVersion"]
        bench.known.written(read_job(ours))
    assert not writing.news and bench.known.job(KEY) == job, "no older one comes back"


def test_a_read_that_is_older_than_what_was_written_meanwhile_is_not_kept() -> None:
    """The watch has not told of the write yet."""
    bench = Bench("")
    bench.began()
    bench.known.doubt(KEY)
    with bench.known.reading(KEY) as reading:
        job = read_job(bench.job)
        bench.known.written(read_job(bench.stored(phase="Running")))
        reading.take(Sight(job=job, pods=(), service=SERVICE, read=True), [], 0.0)
    assert bench.known.job(KEY) is None and bench.phases() is None


def test_a_job_that_is_deleted_while_a_write_is_under_way_is_gone_at_once() -> None:
    bench = Bench()
    bench.began()
    with bench.known.writing(KEY) as writing:
        assert bench.tell(bench.job, gone=True) == [True]
    assert not writing.news and bench.known.job(KEY) is None


def test_a_listed_slot_without_a_pod_must_be_read() -> None:
    bench = Bench("0-1")
    pod = bench.pod()
    bench.began(pod)
    assert bench.phases() is None
    other = bench.pod("digits-1")
    bench.tell(other)
    assert bench.phases() is not None
    bench.tell(other, gone=True)
    assert bench.phases() is None


def test_nothing_is_known_between_begin_and_complete_or_after_a_doubt() -> None:
    bench = Bench()
    pod = bench.pod()
    bench.began(pod)
    bench.known.begin()
    assert bench.phases() is None
    bench.tell(bench.job, pod)
    assert bench.phases() is None
    bench.known.complete(0.0)
    assert bench.phases() is not None
    bench.known.doubt(KEY)
    assert bench.phases() is None


def test_a_pod_that_vanished_in_a_gap_is_not_known_after_it() -> None:
    bench = Bench("")
    bench.began(bench.pod(), bench.pod("digits-1"))
    bench.known.begin()
    bench.tell(bench.job, bench.cluster.pods()[0])
    bench.known.complete(0.0)
    assert bench.phases() == {"digits-0": "Pending"}


def test_what_is_told_during_a_list_is_merged_with_it() -> None:
    bench = Bench("")
    stays, goes = bench.pod(), bench.pod("digits-1")
    bench.began(stays, goes)
    bench.known.doubt(KEY)
    bench.tell(bench.job)
    with bench.known.reading(KEY) as reading:
        listed = bench.read(stays, goes)
        bench.tell(bench.phase("digits-0", "Running"), bench.pod("digits-2"))
        bench.tell(goes, gone=True)
        reading.take(*listed, 5.0)
    assert bench.phases() == {"digits-0": "Running", "digits-2": "Pending"}


def test_a_pod_that_a_list_does_not_show_any_more_is_not_known() -> None:
    bench = Bench("")
    pod, other = bench.pod(), bench.pod("digits-1")
    bench.began(pod, other)
    with bench.known.reading(KEY) as reading:
        reading.take(*bench.read(pod), 0.0)
    assert bench.phases() == {"digits-0": "Pending"}


@pytest.mark.parametrize("trouble", ["gap", "doubt"])
def test_a_list_that_a_gap_or_a_doubt_came_upon_is_not_kept(trouble: str) -> None:
    bench = Bench()
    pod = bench.pod()
    bench.began(pod)
    with bench.known.reading(KEY) as reading:
        listed = bench.read(pod)
        if trouble == "gap":
            bench.known.begin()
        else:
            bench.known.doubt(KEY)
        bench.tell(bench.job)
        reading.take(*listed, 0.0)
    assert bench.phases() is None


def test_a_job_of_the_same_name_is_another_one() -> None:
    bench = Bench()
    pod = bench.pod()
    bench.began(pod)
    with bench.known.reading(KEY) as reading:
        listed = bench.read(pod)
        bench.cluster.remove_job(*KEY)
        bench.cluster.create_job(manifest())
        again = bench.cluster.job(*KEY)
        assert bench.tell(again) == [True]
        assert bench.tell(bench.job, gone=True) == [False]
        reading.take(*listed, 0.0)
    assert bench.phases() is None and bench.known.job(KEY) is not None
    assert bench.known.job(KEY).metadata.uid == again["metadata"]["uid"]  # type: ignore[union-attr]


def test_the_job_that_bore_the_name_before_is_not_taken_after_the_new_one_was_read() -> None:
    """The watch may be behind, and begin with it."""
    bench = Bench()
    bench.known.begin()
    bench.tell(bench.job, bench.pod())
    before = bench.job
    bench.cluster.remove_job(*KEY)
    bench.cluster.create_job(manifest())
    bench.job = bench.cluster.job(*KEY)
    with bench.known.reading(KEY) as reading:
        reading.take(Sight(job=read_job(bench.job), pods=(), service=SERVICE, read=True), [], 0.0)
    bench.known.complete(0.0)
    assert bench.tell(before) == [False] and bench.tell(before, gone=True) == [False]
    assert bench.known.job(KEY).metadata.uid == bench.job["metadata"]["uid"]  # type: ignore[union-attr]


def test_a_job_that_is_gone_must_be_read() -> None:
    bench = Bench()
    bench.began(bench.pod())
    assert bench.tell(bench.job, gone=True) == [True]
    assert bench.known.job(KEY) is None and bench.phases() is None


def test_after_two_hours_a_job_is_read_again_but_no_finished_one() -> None:
    bench = Bench()
    bench.began(bench.pod())
    assert bench.phases(READ_AGAIN_S - 1) is not None and bench.phases(READ_AGAIN_S) is None
    done = {"type": "Complete", "status": "True", "reason": "x", "lastTransitionTime": "2030-01-01T00:00:00Z"}
    bench.tell(bench.stored(conditions=[{**done, "observedGeneration": 1, "message": ""}]))
    sight = bench.known.sight(KEY, 10 * READ_AGAIN_S)
    assert sight is not None and sight.service_age_s == 0.0


def test_a_foreign_service_is_looked_for_again_each_time() -> None:
    bench = Bench()
    bench.began(bench.pod())
    foreign = bench.service()
    foreign["metadata"]["ownerReferences"][0]["uid"] = "somebody"
    bench.known.served(KEY, foreign, 0.0)
    sight = bench.known.sight(KEY, 1.0)
    assert sight is not None and sight.service is not None and not sight.service.owned
    assert sight.service_age_s >= READ_AGAIN_S


def test_a_service_that_was_read_grows_old_and_one_that_the_watch_tells_of_does_not() -> None:
    bench = Bench()
    pod = bench.pod()
    bench.began(pod)
    assert bench.service_seen(7.0) == (True, 7.0)
    assert bench.tell(bench.service()) == [False], "it is as it was read"
    assert bench.service_seen(700.0) == (True, 0.0)
    bench.known.begin()
    bench.tell(bench.job, pod, bench.service())
    bench.known.complete(0.0)
    assert bench.service_seen(700.0) == (True, 0.0)


def test_a_job_whose_pods_are_doubted_has_its_service_still() -> None:
    bench = Bench("")
    bench.began()
    bench.tell(bench.service())
    bench.known.doubt(KEY)
    with bench.known.reading(KEY) as reading:
        reading.take(Sight(job=read_job(bench.job), pods=(), service=SERVICE, read=True), [], 0.0)
    assert bench.service_seen(700.0) == (True, 0.0)


@pytest.mark.parametrize("order", ["told first", "answered first"])
def test_a_service_that_was_put_right_is_right_whoever_says_so_first(order: str) -> None:
    bench = Bench("")
    bench.began()
    wrong = bench.service(selector={"app": "web"})
    assert bench.tell(wrong) == [True] and bench.service_seen(9.0) == (False, 0.0)
    right = bench.service(selector={"trainjob.dev/job": "digits"})
    if order == "told first":
        bench.tell(right)
    bench.known.served(KEY, right, 9.0)
    assert bench.tell(wrong, right) == [False, False]
    assert bench.service_seen(99.0) == (True, 0.0)


def test_a_service_that_is_told_to_be_gone_must_be_read_and_no_late_answer_brings_it_back() -> None:
    bench = Bench("")
    bench.began()
    made = bench.service()
    bench.tell(made)
    bench.cluster._store.delete("Service", *KEY)
    last = {**made, "metadata": {**made["metadata"], "resourceVersion": str(bench.cluster._store._version)}}
    assert bench.tell(last, gone=True) + bench.tell(last, gone=True) == [True, False]
    bench.known.served(KEY, made, 1.0)
    there, age_s = bench.service_seen(1.0)
    assert not there and age_s >= READ_AGAIN_S
    bench.known.served(KEY, None, 2.0)
    assert bench.service_seen(5.0) == (False, 3.0)
    bench.known.served(KEY, bench.service(), 6.0)
    assert bench.service_seen(8.0) == (True, 2.0)


def test_a_service_without_its_label_is_read_and_grows_old() -> None:
    """To the watch it is gone."""
    bench = Bench("")
    bench.began()
    bench.tell(bench.service())
    unlabelled = bench.cluster._store.update(
        "Service", *KEY, lambda found: found["metadata"].update(labels={"app": "web"})
    )
    assert bench.tell(unlabelled, gone=True) == [True]
    bench.known.served(KEY, unlabelled, 1.0)
    assert bench.service_seen(8.0) == (True, 7.0)


def test_what_is_somebodys_of_a_service_is_no_news() -> None:
    bench = Bench("")
    bench.began()
    bench.tell(bench.service())
    annotated = bench.cluster._store.update(
        "Service", *KEY, lambda found: found["metadata"].update(annotations={"owner": "me"})
    )
    other = {**annotated, "metadata": {**annotated["metadata"], "name": "digits-web", "uid": "other"}}
    assert bench.tell(annotated, other) == [False, False]
    assert bench.service_seen(9.0) == (True, 0.0)


def test_nothing_is_kept_of_the_service_of_a_job_that_is_gone() -> None:
    bench = Bench("")
    bench.began()
    bench.tell(bench.service())
    bench.known.gone(KEY)
    assert bench.tell(bench.service(), gone=True) == [False]
    assert not bench.known._services._known


def test_which_missing_pods_were_deleted_and_which_only_lost_their_label() -> None:
    bench = Bench("0-1")
    deleted, unlabelled = bench.pod(), bench.pod("digits-1")
    bench.began(deleted, unlabelled)
    bench.cluster.remove_pod(NAMESPACE, "digits-0", 0)
    deleted["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    bench.tell(deleted, unlabelled, gone=True)
    assert bench.known.went(KEY) == {"digits-0"}
    bench.tell(bench.pod())
    assert bench.known.went(KEY) == set()


@pytest.mark.parametrize("told", ["evicted", "ended"])
def test_a_pod_that_was_deleted_by_force_is_not_taken_for_one_without_its_label(told: str) -> None:
    bench = Bench("0")
    pod = bench.pod()
    bench.began(pod)
    target = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    ended = {"name": "trainer", "state": {"terminated": {"exitCode": 3}}}
    status = {"conditions": [target]} if told == "evicted" else {"phase": "Failed", "containerStatuses": [ended]}
    last = bench.cluster.set_pod_status(NAMESPACE, "digits-0", status)
    bench.cluster.remove_pod(NAMESPACE, "digits-0", 0)
    assert "deletionTimestamp" not in last["metadata"], "its grace period was 0"
    bench.tell(last, gone=True)
    assert bench.known.went(KEY) == {"digits-0"}


def running(bench: Bench, members: str) -> Manifest:
    """The job with a running attempt of these members."""
    attempt = {"number": 1, "state": "Running", "startedAt": EPOCH.isoformat(), "members": members, "workers": 2}
    return bench.stored(slots=members, attempt={**attempt, "worldSize": 2, "cause": "Started"})


def test_a_member_that_was_deleted_is_known_as_it_was_last_through_doubts_and_gaps() -> None:
    bench = Bench("0-1")
    bench.job = running(bench, "0-1")
    stays, other = bench.pod(), bench.pod("digits-1")
    target = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    bench.began(stays, other)
    last = bench.cluster.set_pod_status(NAMESPACE, "digits-1", {"phase": "Running", "conditions": [target]})
    last["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    bench.cluster.remove_pod(NAMESPACE, "digits-1", 0)
    bench.known.doubt(KEY)
    bench.tell(last, gone=True)
    bench.known.begin()
    bench.tell(bench.job, stays)
    bench.known.complete(0.0)
    with bench.known.reading(KEY) as reading:
        reading.take(*bench.read(stays), 0.0)
    sight = bench.known.with_departed(bench.read(stays)[0])
    assert {slot: (pod.disrupted, pod.disruption) for slot, pod in sight.went.items()} == {
        1: (True, "EvictionByEvictionAPI")
    }
    bench.known.written(read_job(running(bench, "0,2")))
    bench.known.rest(KEY)
    assert bench.known.went(KEY) == set(), "another slot took its place"


@pytest.mark.parametrize("doubted", [True, False])
def test_what_was_told_of_a_pod_counts_though_a_read_shows_first_that_it_is_gone(doubted: bool) -> None:
    """The watch comes late: it has told that the pod was to be taken away, and not yet that it was."""
    bench = Bench("0-1")
    bench.job = running(bench, "0-1")
    stays, _ = bench.pod(), bench.pod("digits-1")
    target = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    told = bench.cluster.set_pod_status(NAMESPACE, "digits-1", {"phase": "Running", "conditions": [target]})
    bench.began(stays, told)
    if doubted:
        bench.known.doubt(KEY)
        bench.tell(bench.job)
    with bench.known.reading(KEY) as reading:
        reading.take(*bench.read(stays), 0.0)
    for sight in (bench.known.with_departed(bench.read(stays)[0]), bench.known.sight(KEY, 1.0)):
        if sight is not None:
            assert {slot: pod.disruption for slot, pod in sight.went.items()} == {1: "PreemptionByScheduler"}
    assert bench.known.went(KEY) == set(), "that it was deleted is not told: it may have lost its label"


@pytest.mark.parametrize("gone", [False, True])
def test_a_pod_that_came_while_a_list_was_under_way_is_not_taken_for_gone(gone: bool) -> None:
    """The list was made before it, and arrives after the watch has told of it."""
    bench = Bench("0-1")
    bench.job = running(bench, "0-1")
    stays = bench.pod()
    bench.began(stays)
    with bench.known.reading(KEY) as reading:
        listed = bench.read(stays)
        came = bench.pod("digits-1")
        bench.tell(came)
        if gone:
            bench.tell(came, gone=True)
        reading.take(*listed, 0.0)
        sight = bench.known.with_departed(reading.with_told(listed[0]))
    assert [pod.name for pod in sight.pods] == ["digits-0", "digits-1"][: 2 - gone]
    assert list(sight.went) == [1] * gone


def test_a_disruption_that_was_taken_back_before_the_pod_was_gone_is_none() -> None:
    bench = Bench("0")
    bench.job = running(bench, "0")
    bench.pod()
    for status in ("True", "False"):
        target = {"type": "DisruptionTarget", "status": status, "reason": "PreemptionByScheduler"}
        told = bench.cluster.set_pod_status(NAMESPACE, "digits-0", {"phase": "Running", "conditions": [target]})
        bench.began(told)
    went = bench.known.with_departed(bench.read()[0]).went
    assert {slot: (pod.disrupted, pod.disruption) for slot, pod in went.items()} == {0: (False, None)}


def test_no_older_job_is_taken_after_a_doubt() -> None:
    """Agents act on our word of it: one that was told of slot 1 must not hear that there is none."""
    bench = Bench("")
    bench.began()
    newer = bench.stored(slots="1")
    bench.known.written(read_job(newer))
    bench.known.doubt(KEY)
    assert bench.tell(bench.job) == [False] and bench.known.job(KEY) is None
    assert bench.tell(newer) == [True]
    assert bench.known.job(KEY).status.slots == "1"  # type: ignore[union-attr]


def test_a_finished_job_rests_as_what_was_stored() -> None:
    bench = Bench()
    done = {"type": "Failed", "status": "True", "reason": "x", "lastTransitionTime": "2030-01-01T00:00:00Z"}
    bench.job = bench.stored(conditions=[{**done, "observedGeneration": 1, "message": ""}])
    bench.began(bench.pod())
    assert bench.known.job(KEY) is bench.known.job(KEY)
    first = bench.known.job(KEY)
    bench.known.rest(KEY)
    again = bench.known.job(KEY)
    assert again == first and again is not first


def test_a_job_that_cannot_be_read_says_so_at_its_turn() -> None:
    bench = Bench()
    bench.job = json.loads(json.dumps(bench.job).replace('"workers": 2', '"workers": "many"'))
    bench.began()
    with pytest.raises(UnreadableJob):
        bench.known.sight(KEY, 0.0)


def test_a_job_that_was_read_alone_is_known_and_its_pods_are_not() -> None:
    bench = Bench()
    with bench.known.reading(KEY) as reading:
        reading.take_job(bench.job)
    assert bench.known.has(KEY) and not bench.known.is_listed(KEY)
    assert bench.known.job(KEY) is not None and bench.known.sight(KEY, 0.0) is None
    assert bench.tell(bench.cluster.job(*KEY), gone=True) == [True] and not bench.known.has(KEY)


@pytest.mark.parametrize("meanwhile", ["a gap", "a gap before", "gone"])
def test_a_job_that_may_be_gone_since_it_was_read_is_not_known(meanwhile: str) -> None:
    bench = Bench()
    old = bench.job
    if meanwhile == "a gap before":
        bench.known.begin()
    with bench.known.reading(KEY) as reading:
        if meanwhile == "a gap":
            bench.known.begin()
        elif meanwhile == "gone":
            bench.tell(bench.stored(slots="0-1"), gone=True)
        reading.take_job(old)
    assert not bench.known.has(KEY)

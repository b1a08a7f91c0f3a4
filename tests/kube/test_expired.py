"""410: an API server that has forgotten a version, or the rest of a list. Nothing is missed, and nothing ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from support.patience import HANG_S
from support.scripted_api import JOBS, PODS, ScriptedApi, scripted_api
from trainjob_api import contract
from trainjob_operator.cluster import Mark, Seen
from trainjob_operator.k8s import bridge, host, kubeapi
from trainjob_operator.k8s.bridge import Ears
from trainjob_operator.k8s.host import Rests, WatchEnded, watch_with_kopf
from trainjob_operator.k8s.kube import KubeCluster
from trainjob_operator.k8s.kubeapi import Api, Expired
from trainjob_operator.process.settings import read_settings

POD = {"POD_NAME": "op", "POD_NAMESPACE": "op", "POD_IP": "192.0.2.1"}
LISTED = "/api/v1/namespaces/default/pods"

Story = Callable[[ScriptedApi, Api], Awaitable[Any]]


def told(story: Story, folder: Path) -> Any:
    async def main() -> Any:
        async with scripted_api(folder) as (server, kubeconfig):
            api = await Api.connect(kubeconfig=str(kubeconfig))
            try:
                return await story(server, api)
            finally:
                await api.close()

    return asyncio.run(main())


# --- Lists ------------------------------------------------------------------------------------------------------------


def test_a_list_whose_rest_is_forgotten_is_begun_anew(tmp_path: Path) -> None:
    async def story(server: ScriptedApi, api: Api) -> None:
        for number in range(5):
            server.put(PODS, f"pod-{number}")
        server.expire_lists = 2
        found = await api.list(LISTED)
        assert [pod["metadata"]["name"] for pod in found] == [f"pod-{number}" for number in range(5)], "none twice"
        assert [rest for _, rest in server.lists] == ["", "2", "", "2", "", "2", "4"]
        assert all(pod["metadata"]["managedFields"] == [] for pod in found), "nobody reads them"

    told(story, tmp_path)


def test_a_list_whose_rest_is_always_forgotten_is_given_up(tmp_path: Path) -> None:
    async def story(server: ScriptedApi, api: Api) -> None:
        for number in range(5):
            server.put(PODS, f"pod-{number}")
        server.expire_lists = 1000
        with pytest.raises(Expired, match="the API server answered 410: too old"):
            await api.list(LISTED)
        assert len(server.lists) == 2 * kubeapi.LISTS_AT_MOST

    told(story, tmp_path)


# --- Watches ----------------------------------------------------------------------------------------------------------


class Heard:
    """What a cluster's watch has told, with kopf behind it."""

    def __init__(self, api: Api) -> None:
        self.cluster = KubeCluster(api)
        self.news: list[Any] = []
        self.stop = asyncio.Event()
        ears = Ears(
            tell=self.cluster.tell,
            missed=self.cluster.missed,
            alive=lambda: None,
            blind=lambda why: None,
            on_call=lambda *call: None,
        )
        settings = read_settings(["--runtime-image", "x"], POD)

        async def served() -> bool:
            return True

        watch = watch_with_kopf(settings=settings, connect=api.connection, ears=ears, served=served, stop=self.stop)
        self.kopf = asyncio.create_task(watch)
        self.listening = asyncio.create_task(self._listen())
        self._more = asyncio.Event()

    async def _listen(self) -> None:
        async for news in self.cluster.watch():
            self.news.append(news)
            self._more.set()

    async def until(self, good: Callable[[], bool]) -> None:
        async with asyncio.timeout(HANG_S):
            while not good():
                assert not self.kopf.done(), self.kopf
                self._more.clear()
                await self._more.wait()

    def since_last_begin(self) -> list[str]:
        """Names of what was told to be there, once all was told."""
        begun = max(place for place, news in enumerate(self.news) if news is Mark.BEGIN)
        news = self.news[begun:]
        if Mark.COMPLETE not in news:
            return []
        return [
            seen.manifest["metadata"]["name"] for seen in news[: news.index(Mark.COMPLETE)] if isinstance(seen, Seen)
        ]

    def knows_gone(self, name: str) -> bool:
        """It was told to be gone, or is in no list that came later."""
        told = [seen.gone for seen in self.news if isinstance(seen, Seen) and seen.manifest["metadata"]["name"] == name]
        return told[-1] or (bool(self.since_last_begin()) and name not in self.since_last_begin())

    async def end(self) -> None:
        self.stop.set()
        await self.kopf
        self.listening.cancel()
        await asyncio.wait({self.listening})


def heard(story: Callable[[ScriptedApi, Heard], Awaitable[None]], folder: Path) -> None:
    async def with_watch(server: ScriptedApi, api: Api) -> None:
        server.put(JOBS, "digits")
        for number in range(5):
            server.put(PODS, f"digits-{number}", **{contract.LABEL_JOB: "digits"})
        watch = Heard(api)
        try:
            await story(server, watch)
        finally:
            await watch.end()

    told(with_watch, folder)


def test_a_watch_that_fell_behind_lists_anew_and_what_went_meanwhile_is_gone(tmp_path: Path) -> None:
    async def story(server: ScriptedApi, watch: Heard) -> None:
        await server.until_watched(JOBS)
        await server.until_watched(PODS)
        await watch.until(lambda: len(watch.since_last_begin()) == 6)
        del server.objects[PODS]["digits-3"]  # and no watch told of it
        server.version += 1000
        server.expire_watches(PODS)
        await watch.until(lambda: len(watch.since_last_begin()) == 5)
        assert "digits-3" not in watch.since_last_begin()
        await server.until_watched(PODS, 2)
        assert server.watches[-1] == (PODS, str(server.version)), "it goes on where the new list stands"

    heard(story, tmp_path)


def test_a_first_list_whose_rest_is_forgotten_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "EXPIRED_REST_S", 0.01)

    async def story(server: ScriptedApi, watch: Heard) -> None:
        await server.until_watched(JOBS)
        await server.until_watched(PODS)
        await watch.until(lambda: len(watch.since_last_begin()) == 6)
        server.expire_lists = 1
        server.put(PODS, "digits-5", **{contract.LABEL_JOB: "digits"})
        server.expire_watches(PODS)
        await watch.until(lambda: len(watch.since_last_begin()) == 7)
        await server.until_watched(PODS, 2)
        server.tell(PODS, "DELETED", server.objects[PODS].pop("digits-2"))
        await watch.until(lambda: watch.knows_gone("digits-2"))

    heard(story, tmp_path)


def test_a_watch_that_is_refused_as_too_old_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the status of the answer, not in the stream: kopf does not go on after that."""
    monkeypatch.setattr(host, "EXPIRED_REST_S", 0.01)

    async def story(server: ScriptedApi, watch: Heard) -> None:
        refused = 0

        def too_old(request: web.Request) -> int | None:
            nonlocal refused
            refused += "watch" in request.query
            return 410 if "watch" in request.query and refused == 1 else None

        server.refuse = too_old
        server.expire_watches(PODS)
        await watch.until(lambda: refused > 2 and len(watch.since_last_begin()) == 6)
        await server.until_watched(PODS)
        server.tell(PODS, "DELETED", server.objects[PODS].pop("digits-2"))
        await watch.until(lambda: watch.knows_gone("digits-2"))

    heard(story, tmp_path)


def test_another_thing_that_is_gone_is_no_list_that_expired(tmp_path: Path) -> None:
    async def with_watch(server: ScriptedApi, api: Api) -> None:
        server.refuse = lambda request: (
            410 if request.path.endswith(JOBS) and not request.query.get("continue") else None
        )
        watch = Heard(api)
        with pytest.raises(WatchEnded):
            async with asyncio.timeout(HANG_S):
                await watch.kopf
        watch.listening.cancel()
        await asyncio.gather(watch.listening, return_exceptions=True)

    told(with_watch, tmp_path)


def test_lists_that_expire_one_after_the_other_are_begun_ever_more_rarely() -> None:
    rests = Rests()
    assert [rests.after(3.0) for _ in range(8)] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert [rests.after(host.EXPIRED_OVER_S), rests.after(3.0)] == [1.0, 2.0]


def test_watches_that_end_at_once_for_ever_are_opened_at_a_pace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something between here and the API server ends them. None is asked for as fast as answers come."""
    monkeypatch.setattr(bridge, "REOPENED_S", 3600.0)

    async def story(server: ScriptedApi, watch: Heard) -> None:
        server.watches_end = True
        await server.until_watched(JOBS)
        await server.until_watched(PODS)
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert sorted(kind for kind, _ in server.watches) == [PODS, JOBS]

    heard(story, tmp_path)


@pytest.mark.parametrize("instead", ["<html>please log in</html>\n", '{"type": "ADDED", "obj', "\n\xe4\n"])
def test_a_watch_that_brings_no_json_says_that_somebody_else_answers(tmp_path: Path, instead: str) -> None:
    async def story(server: ScriptedApi, api: Api) -> None:
        server.instead = instead
        watch = Heard(api)
        try:
            with pytest.raises(WatchEnded, match="something between here and the API server answers in its place"):
                await asyncio.wait_for(asyncio.shield(watch.kopf), HANG_S)
        finally:
            watch.listening.cancel()
            await asyncio.wait({watch.listening})

    told(story, tmp_path)

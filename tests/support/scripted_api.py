"""An API server whose answers a test writes: lists by page, watches, and what goes wrong with them.

It knows TrainJobs and pods, as far as listing and watching go. Real ones forget versions after minutes; this one does
when it is told to. What a real server answers to all else is tested on a real one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from support.patience import HANG_S
from trainjob_api import contract

JOBS, PODS = contract.PLURAL, "pods"
EXPIRED = {"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old"}


class ScriptedApi:
    """`objects` are what lists bring; `tell` is what watches do."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {JOBS: {}, PODS: {}}
        """By name, of each kind."""
        self.refuse: Callable[[web.Request], int | None] = lambda request: None
        """The status that a request is refused with, if it is."""
        self.expire_lists = 0
        """So many more times the rest of a list is forgotten, when it is asked for."""
        self.instead = ""
        """What watches bring, and no more."""
        self.watches_end = False
        """Watches are opened, and end at once."""
        self.page = 2
        """Objects of a page, whatever is asked for."""
        self.lists: list[tuple[str, str]] = []
        """What was listed: the kind, and the rest that was asked for; empty: a new list."""
        self.watches: list[tuple[str, str]] = []
        """What was watched: the kind, and since which version."""
        self.version = 100
        self._streams: dict[str, list[asyncio.Queue[Any]]] = {JOBS: [], PODS: []}
        self._changed = asyncio.Event()

    def put(self, plural: str, name: str, **labels: str) -> dict[str, Any]:
        """An object is there, with a new version; no watch tells of it."""
        self.version += 1
        kind = contract.KIND if plural == JOBS else "Pod"
        metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": str(self.version)}
        managed = [{"manager": "kubelet", "fieldsV1": {'k:{"a":1}': {}}}]
        made = {"kind": kind, "metadata": {**metadata, "labels": labels, "managedFields": managed}, "spec": {}}
        self.objects[plural][name] = made
        return made

    def tell(self, plural: str, type_: str, found: Any) -> None:
        """All open watches of this kind are told."""
        for stream in self._streams[plural]:
            stream.put_nowait({"type": type_, "object": found})

    def expire_watches(self, plural: str) -> None:
        """As a server does that has forgotten the version they stand at."""
        self.tell(plural, "ERROR", EXPIRED)

    async def until_watched(self, plural: str, times: int = 1) -> None:
        """So many watches of this kind were opened."""
        async with asyncio.timeout(HANG_S):
            while sum(kind == plural for kind, _ in self.watches) < times:
                self._changed.clear()
                await self._changed.wait()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Any request."""
        status = self.refuse(request)
        if status is not None:
            return web.json_response({**EXPIRED, "code": status}, status=status)
        plural = request.path.rpartition("/")[2]
        if plural not in self.objects:
            return web.json_response(_discovery(request.path))
        if "watch" in request.query:
            return await self._watch(request, plural)
        rest = request.query.get("continue", "")
        self.lists.append((plural, rest))
        self._changed.set()
        if rest and self.expire_lists:
            self.expire_lists -= 1
            return web.json_response(EXPIRED, status=410)
        begun = int(rest or 0)
        found = list(self.objects[plural].values())
        more = str(begun + self.page) if begun + self.page < len(found) else ""
        metadata = {"resourceVersion": str(self.version), "continue": more}
        items = found[begun : begun + self.page]
        return web.Response(
            text=json.dumps({"kind": "List", "metadata": metadata, "items": items}, separators=(",", ":")),
            content_type="application/json",
        )

    async def _watch(self, request: web.Request, plural: str) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        stream: asyncio.Queue[Any] = asyncio.Queue()
        self._streams[plural].append(stream)
        self.watches.append((plural, request.query.get("resourceVersion", "")))
        self._changed.set()
        try:
            if self.instead:
                await answer.write(self.instead.encode())
                return answer
            while not self.watches_end:
                news = await stream.get()
                await answer.write(json.dumps(news).encode() + b"\n")
                if news["type"] == "ERROR":
                    break
            return answer
        finally:
            self._streams[plural].remove(stream)


def _discovery(path: str) -> dict[str, Any]:
    """Which kinds there are. Kopf waits for namespaces before it lists anything, whether it looks at them or not."""
    version = {"groupVersion": contract.API_VERSION, "version": contract.VERSION}
    verbs = {"singularName": "", "verbs": ["list", "watch"]}
    core = [
        {"name": PODS, "kind": "Pod", "namespaced": True, **verbs},
        {"name": "namespaces", "kind": "Namespace", "namespaced": False, **verbs},
    ]
    ours = [{"name": JOBS, "kind": contract.KIND, "namespaced": True, **verbs}]
    return {
        "/api": {"versions": ["v1"]},
        "/apis": {"groups": [{"name": contract.GROUP, "versions": [version], "preferredVersion": version}]},
        "/api/v1": {"resources": core},
        f"/apis/{contract.API_VERSION}": {"resources": ours},
    }.get(path, {})


@asynccontextmanager
async def scripted_api(folder: Path) -> AsyncIterator[tuple[ScriptedApi, Path]]:
    """It listens; and a kubeconfig for it, in this folder."""
    api = ScriptedApi()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", api.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        port = runner.addresses[0][1]
        kubeconfig = folder / "scripted.kubeconfig"
        named = {"name": "scripted"}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "scripted",
            "clusters": [{**named, "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "users": [{**named, "user": {"token": "token"}}],
            "contexts": [{**named, "context": {"cluster": "scripted", "user": "scripted"}}],
        }
        kubeconfig.write_text(yaml.safe_dump(document))
        yield api, kubeconfig
    finally:
        await runner.cleanup()

"""`tj events`: what the operator, the scheduler and the kubelets said about a job and its pods, oldest first."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING

from trainjob.cli.cluster import connect, this_machine
from trainjob.cli.cluster.listing import age
from trainjob.screen import table
from trainjob_api import contract

if TYPE_CHECKING:
    from trainjob.launch.cluster.api import Api, Manifest

HEADER = ("LAST SEEN", "COUNT", "TYPE", "REASON", "OBJECT", "MESSAGE")


def events(args: argparse.Namespace) -> int:
    """Print them."""
    this_machine.refuse(args, "events")
    place = connect.connect(args)
    from trainjob.launch.cluster import jobs_api

    with connect.refusals():
        found = fetch(place.api, place.namespace, args.name)
        if not found:
            jobs_api.get(place.api, place.namespace, args.name)  # says so when there is no such job
    if args.output == "json":
        print(json.dumps({"apiVersion": "v1", "kind": "List", "items": found}, indent=2))
    elif not found:
        print(f"there are no events of {args.name}; the cluster keeps them for an hour or so", file=sys.stderr)
    else:
        table.show(HEADER, [row(event, time.time()) for event in found])
    return contract.CLI_OK


def fetch(api: Api, namespace: str, name: str) -> list[Manifest]:
    """Events of the job and of pods of its names, in the order in which they were last seen. Raises ApiError."""
    from trainjob.launch.cluster import jobs_api

    path = jobs_api.core(namespace, "events")
    found = api.items(path, fieldSelector=f"involvedObject.kind={contract.KIND},involvedObject.name={name}")
    pods = re.compile(rf"{re.escape(name)}-\d+")
    found += [
        event
        for event in api.items(path, fieldSelector="involvedObject.kind=Pod")
        if pods.fullmatch(str(event["involvedObject"].get("name")))
    ]
    return sorted(found, key=lambda event: (seen(event), event["metadata"]["name"]))


def seen(event: Manifest) -> str:
    """When it was last seen; the field depends on who wrote it."""
    series = event.get("series") or {}
    named = (
        series.get("lastObservedTime"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
        event.get("firstTimestamp"),
        event["metadata"].get("creationTimestamp"),
    )
    return str(next((text for text in named if text), ""))


def row(event: Manifest, now: float) -> list[str]:
    """The cells of an event; its message on one line."""
    about = event["involvedObject"]
    count = event.get("count") or (event.get("series") or {}).get("count") or 1
    message = " ".join(str(event.get("message") or "").split())
    return [
        _age(seen(event), now),
        str(count),
        str(event.get("type") or ""),
        str(event.get("reason") or ""),
        f"{str(about.get('kind')).lower()}/{about.get('name')}",
        message,
    ]


def _age(text: str, now: float) -> str:
    try:
        return age(datetime.fromisoformat(text), now)
    except ValueError:
        return ""

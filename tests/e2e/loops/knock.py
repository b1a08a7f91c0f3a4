"""Run inside a worker's container by test_refusals.py: says to the coordinator what the test wants it to, as a rogue
program in a pod could.

    knock.py JSON

JSON: `token` (absent: the pod's own; empty: none), `report` (fields put over an honest report of this pod), `body`
(text instead of the report), `bytes` (of spaces behind it), `times`, `until` (a status: no request follows an answer
with it). Prints [status, answer] of the last request as JSON.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import sys
import time
from urllib.parse import urlsplit


def honest_report() -> dict:
    """As the agent of this pod would begin; seq 0 is older than whatever it has said."""
    return {
        "namespace": os.environ["TRAINJOB_NAMESPACE"],
        "job": os.environ["TRAINJOB_JOB"],
        "job_uid": os.environ["TRAINJOB_JOB_UID"],
        "slot": int(os.environ["TRAINJOB_SLOT"]),
        "pod": os.environ["TRAINJOB_POD_NAME"],
        "pod_uid": os.environ["TRAINJOB_POD_UID"],
        "boot": 1,
        "seq": 0,
        "clock": time.time(),
        "address": "127.0.0.1:1",
    }


def main() -> None:
    asked = json.loads(sys.argv[1])
    with open(os.environ["TRAINJOB_TOKEN_FILE"]) as file:
        token = asked.get("token", file.read().strip())
    body = asked.get("body") or json.dumps({**honest_report(), **asked.get("report", {})})
    body += " " * asked.get("bytes", 0)
    url = urlsplit(os.environ["TRAINJOB_COORDINATOR"])
    connection = http.client.HTTPSConnection(
        url.hostname,
        url.port,
        timeout=60,
        context=ssl.create_default_context(cadata=os.environ["TRAINJOB_COORDINATOR_CA"]),
    )
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    for _ in range(asked.get("times", 1)):
        connection.request("POST", "/v1/sync", body, headers)
        answer = connection.getresponse()
        said = answer.read().decode()
        if answer.status == asked.get("until"):
            break
    print(json.dumps([answer.status, said]))


if __name__ == "__main__":
    main()

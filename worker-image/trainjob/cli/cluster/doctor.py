"""`tj doctor`: runs the checks of `findings.py` against a cluster and prints what each found."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from trainjob.cli.cluster import connect, findings
from trainjob.cli.cluster.findings import Finding, Level
from trainjob.screen import table
from trainjob_api.contract import CLI_ERROR, CLI_OK

WORDS = {Level.OK: "ok", Level.WARN: "warn", Level.FAIL: "FAIL"}


def doctor(args: argparse.Namespace) -> int:
    """1 when something is broken, else 0; warnings are no failure."""
    place = connect.connect(args)
    found = findings.examine(findings.Patient(place.api, place.namespace, args.operator_namespace))
    if args.output == "json":
        print(json.dumps([{**asdict(finding), "level": WORDS[finding.level]} for finding in found], indent=2))
    else:
        _print(found)
    broken = any(finding.level is Level.FAIL for finding in found)
    return CLI_ERROR if broken else CLI_OK


def _print(found: list[Finding]) -> None:
    table.show(("", "CHECK", "FOUND"), [[WORDS[finding.level], finding.check, finding.found] for finding in found])
    broken = [finding for finding in found if finding.level is not Level.OK and finding.mend]
    sys.stdout.flush()
    for finding in broken:
        print(f"next: {finding.check}: {finding.mend}", file=sys.stderr)

"""`tj doctor`: runs the checks of this machine and of a cluster, and prints what each found."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from trainjob.cli import jobs_parser
from trainjob.cli.finding import Finding, Level
from trainjob.launch.cluster.api import configured
from trainjob.screen import table
from trainjob_api.contract import CLI_ERROR, CLI_OK

WORDS = {Level.OK: "ok", Level.WARN: "warn", Level.FAIL: "FAIL"}


def doctor(args: argparse.Namespace) -> int:
    """1 when something is broken, else 0; warnings are no failure. An option that names a cluster means that one alone;
    without one this machine is looked at, and the cluster of its kubeconfig if it has one.
    """
    named = jobs_parser.means_cluster(args)
    found: list[Finding] = []
    if not named:
        from trainjob.cli.local import machine

        found += machine.judge(machine.look())
    if named or configured():
        from trainjob.cli.cluster import connect, findings

        place = connect.connect(args)
        found += findings.examine(findings.Patient(place.api, place.namespace, args.operator_namespace))
    else:
        found.append(Finding("cluster", Level.OK, "no kubeconfig: jobs run on this machine (tj run, fit())"))
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

"""Flags and environment of an operator process: defaults, and one clear line for each wrong word."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.patience import HANG_S
from trainjob_api import contract
from trainjob_operator.process.settings import BadSettings, HelpShown, read_settings

POD = {"POD_NAME": "op-1", "POD_NAMESPACE": "trainjob-system", "POD_IP": "10.1.2.3"}
IMAGE = ["--runtime-image", "trainjob-runtime:1"]


def test_defaults_are_the_contracts() -> None:
    settings = read_settings(IMAGE, POD)
    assert settings.namespaces == ()
    assert (
        settings.coordinator_url
        == f"https://{contract.COORDINATOR_SERVICE}.trainjob-system.svc:{contract.COORDINATOR_PORT}"
    )
    assert (settings.service, settings.secret, settings.lease) == (
        contract.COORDINATOR_SERVICE,
        contract.COORDINATOR_SECRET,
        contract.LEASE_NAME,
    )
    assert (settings.coordinator_port, settings.metrics_port) == (contract.COORDINATOR_PORT, contract.METRICS_PORT)
    assert settings.leader_election
    assert settings.listen_host == "0.0.0.0"
    assert settings.dns_names[0] == f"{contract.COORDINATOR_SERVICE}.trainjob-system.svc"


def test_flags_change_them() -> None:
    words = [
        *IMAGE,
        "--namespace",
        "b",
        "--namespace",
        "a",
        "--namespace",
        "b",
        "--no-leader-election",
        "--workers",
        "8",
        "--log-format",
        "text",
    ]
    settings = read_settings([*words, "--coordinator-url", "https://10.0.0.9:444/"], {**POD, "POD_IP": "fd00::1"})
    assert settings.namespaces == ("b", "a")
    assert not settings.leader_election
    assert settings.workers == 8
    assert settings.coordinator_url == "https://10.0.0.9:444"
    assert "10.0.0.9" in settings.dns_names
    assert settings.listen_host == "::"


def test_a_service_and_a_port_of_ones_own_are_in_the_url() -> None:
    settings = read_settings([*IMAGE, "--service", "door", "--coordinator-port", "9000"], POD)
    assert settings.coordinator_url == "https://door.trainjob-system.svc:9000"


@pytest.mark.parametrize(
    ("words", "environment", "named"),
    [
        ([], POD, "--runtime-image"),
        (["--runtime-image", " "], POD, "--runtime-image"),
        ([*IMAGE, "--namespace", "Team_A"], POD, "--namespace"),
        ([*IMAGE, "--coordinator-port", "70000"], POD, "--coordinator-port"),
        ([*IMAGE, "--metrics-port", "x"], POD, "--metrics-port"),
        ([*IMAGE, "--log-format", "xml"], POD, "--log-format"),
        ([*IMAGE, "--log-level", "loud"], POD, "--log-level"),
        ([*IMAGE, "--runtime-pull-policy", "Sometimes"], POD, "--runtime-pull-policy"),
        ([*IMAGE, "--coordinator-url", "coordinator:8443"], POD, "--coordinator-url"),
        ([*IMAGE, "--coordinator-url", "https://x:notaport"], POD, "--coordinator-url"),
        ([*IMAGE, "--coordinator-url", "https://x:70000"], POD, "--coordinator-url"),
        ([*IMAGE, "--coordinator-url", "https://x:0"], POD, "--coordinator-url"),
        ([*IMAGE, "--workers", "0"], POD, "--workers"),
        ([*IMAGE, "--worker", "2"], POD, "--worker"),
        ([*IMAGE, "--no-such-flag"], POD, "--no-such-flag"),
        (IMAGE, {**POD, "POD_NAME": ""}, "POD_NAME"),
        (IMAGE, {name: value for name, value in POD.items() if name != "POD_NAMESPACE"}, "POD_NAMESPACE"),
        (IMAGE, {**POD, "POD_NAMESPACE": "a/b"}, "POD_NAMESPACE"),
        (IMAGE, {**POD, "POD_IP": "here"}, "POD_IP"),
    ],
)
def test_a_wrong_word_is_one_line_that_names_it(words: list[str], environment: dict[str, str], named: str) -> None:
    with pytest.raises(BadSettings) as caught:
        read_settings(words, environment)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_help_explains_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(HelpShown):
        read_settings(["--help"], {})
    shown = capsys.readouterr().out
    for flag in ("--namespace", "--runtime-image", "--lease", "--secret", "--service", "--log-format", "POD_IP"):
        assert flag in shown


def test_the_process_ends_with_2_and_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trainjob_operator", "--metrics-port", "x", *IMAGE],
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert "--metrics-port" in done.stderr

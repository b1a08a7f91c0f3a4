"""Types of the command line's arguments, for both halves of the grammar. Standard library only."""

from __future__ import annotations

import argparse
import re

_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?", re.ASCII)


class at_least:
    """argparse type: a whole number that is not below `least`."""

    def __init__(self, least: int) -> None:
        self.least = least

    def __call__(self, text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < self.least:
            raise argparse.ArgumentTypeError(f"{value} is too small; the least is {self.least}")
        return value


class Range(int):
    """`2-8`: the number 8, and a `least` one of 2."""

    least: int

    def __new__(cls, least: int, most: int) -> Range:
        made = super().__new__(cls, most)
        made.least = least
        return made

    def __str__(self) -> str:
        return f"{self.least}-{int(self)}"


WORKERS = "N|MIN-MAX"
"""Placeholder of an option whose type is `workers`."""


def workers(text: str) -> int:
    """`4`, or `2-8` for an elastic job."""
    least, dash, most = text.partition("-")
    try:
        found = Range(at_least(1)(least), at_least(1)(most)) if dash else at_least(1)(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no number of workers: give 4, or 2-8 for 2 to 8; at least 1"
        ) from None
    if isinstance(found, Range) and found.least > found:
        raise argparse.ArgumentTypeError(f"{text!r}: the smaller number comes first, as in 2-8")
    return found


def run(text: str) -> int | str:
    """`3`; the run of a checkpoint, as of `3-1-2`; the start of one without a number, `20260102-150405.250`."""
    if re.fullmatch(r"\d{8}-\d{6}\.\d{3}", text, re.ASCII):
        return text
    match = re.fullmatch(r"([1-9]\d*)(-\d+){0,2}", text, re.ASCII)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no run: give its number (3), or a checkpoint of it (3-1-2)")
    return int(match[1])


def given(text: str) -> str:
    """Not empty, as the value of a shell's variable that is not set is."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty: give a value, or leave the option out (is its variable set?)")
    return text


def assignment(text: str) -> tuple[str, str]:
    """`NAME=VALUE`."""
    name, equals, value = text.partition("=")
    if not equals or not name or "\0" in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def seconds(text: str) -> float:
    """`90`, `90s`, `10m`, `1h30m`."""
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; give 90s, 10m or 1h30m")
    hours, minutes, rest = (int(part or 0) for part in match.groups())
    return float(hours * 3600 + minutes * 60 + rest)


KEPT_DAYS = 7


def keeping(text: str) -> float:
    """How long something is kept."""
    found = seconds(text)
    if found > KEPT_DAYS * 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is longer than {KEPT_DAYS} days")
    return found


def age(text: str) -> float:
    """Seconds of `90s`, `12h`, `30d`."""
    if re.fullmatch(r"\d+d", text, re.ASCII):
        return int(text[:-1]) * 86400.0
    try:
        return seconds(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is no age; give 90m, 12h or 30d") from None


def job_name(text: str) -> str:
    """A job's name, also as kubectl prints it: `trainjob.trainjob.dev/digits`, `tj/digits`."""
    name = text.rsplit("/", 1)[-1]
    if re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", name) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no name of a job (lower-case letters, digits and dashes)")
    return name


def volume(text: str) -> tuple[str, str]:
    """`CLAIM:/PATH` or `/HOST/PATH:/PATH`."""
    source, colon, path = text.rpartition(":")
    if not colon or not source or not path.startswith("/"):
        raise argparse.ArgumentTypeError(f"{text!r} is not CLAIM:/PATH (or /PATH/ON/THE/NODES:/PATH)")
    return source, path


def label(text: str) -> tuple[str, str]:
    """`KEY=VALUE` of a label or a node selector, as Kubernetes takes them."""
    key, equals, value = text.partition("=")
    prefix, slash, name = key.rpartition("/")
    word = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
    good = re.fullmatch(word, name) and (not slash or re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", prefix))
    if not equals or not good or (value and not re.fullmatch(word, value)):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not KEY=VALUE of a label (letters, digits, - _ and ., at most 63 of them)"
        )
    return key, value


def toleration(text: str) -> dict[str, str]:
    """`KEY`, `KEY=VALUE`, `KEY:EFFECT`, `KEY=VALUE:EFFECT`, as `kubectl taint` writes taints."""
    taint, colon, effect = text.rpartition(":")
    if not colon:
        taint, effect = text, ""
    if colon and effect not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
        raise argparse.ArgumentTypeError(
            f"{text!r}: the effect of a taint is NoSchedule, PreferNoSchedule or NoExecute"
        )
    key, equals, value = taint.partition("=")
    if not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY, KEY=VALUE or KEY=VALUE:EFFECT")
    found = {"key": key, "operator": "Equal", "value": value} if equals else {"key": key, "operator": "Exists"}
    return {**found, **({"effect": effect} if effect else {})}


def secret_key(text: str) -> tuple[str, str, str]:
    """`NAME=SECRET:KEY`."""
    name, equals, rest = text.partition("=")
    secret, colon, key = rest.partition(":")
    if not (equals and colon and name and secret and key):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=SECRET:KEY, such as HF_TOKEN=hub:token")
    return name, secret, key


def words(text: str) -> tuple[str, ...]:
    """`failed,running`: in lower case."""
    found = tuple(word.strip().lower() for word in text.split(",") if word.strip())
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} names no state; give failed, or failed,running")
    return found

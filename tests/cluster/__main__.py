"""`python -m cluster up|down|check|binaries|prepare|images|kubeconfig|load|peers|status|push|test`: the test cluster from
the command line (`make cluster` and its kin).

Knows the order of the steps and prints results; the steps are in the other modules.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time

from cluster import ahead, images, kind, peers, places, preflight
from cluster import engine as engines
from cluster.binaries import BuildError
from cluster.course import Course
from cluster.engine import Engine
from cluster.process import ToolError, run, say

UP = (
    "a Docker engine",
    "a cluster of three nodes",
    "the project's images",
    "images into the nodes",
)
"""What `up` does, in its order."""
TOGETHER = "3"
"""Processes of end-to-end tests: they wait for the cluster most of the time."""
OK, NOTHING = 0, 5
"""pytest's exit codes: all passed, and nothing was selected (-k)."""
NEED_RIGHTS = ("up", "check", "test")
"""Commands that end with `preflight.EXIT_CANNOT` where no cluster can be made."""


def up() -> None:
    """Engine, cluster, images: whatever of it is missing."""
    course = Course(UP)
    with course.step():
        engine = engines.ensure()
        registry = has_registry(engine)
        engine_is = "own Docker engine" if engine.own else "this machine's Docker"
        say(f"{engine_is}, {'published images' if registry else 'images from package archives (no registry answers)'}")
    with course.step():
        if kind.up(engine, registry=registry):
            (places.cluster_folder() / "loaded.json").unlink(missing_ok=True)
    with course.step():
        names = images.build(engine, registry=registry)
    with course.step():
        images.load(engine, names)
    print(f"export KUBECONFIG={places.kubeconfig()}")


def down() -> None:
    """Remove every trace but the cache."""
    engine = engines.find()
    if engine is not None:
        kind.delete(engine)
        if engine.own:
            engine.docker("container", "prune", "--force")
            engine.docker("volume", "prune", "--force")
    engines.stop()
    shutil.rmtree(places.cluster_folder(), ignore_errors=True)


def test(arguments: list[str]) -> int:
    """Run the end-to-end tests where KUBECONFIG points, else on our own cluster, which stays only if it was up
    before. Returns pytest's exit code.
    """
    if os.environ.get("KUBECONFIG"):
        say(f"end-to-end tests on the cluster of KUBECONFIG={os.environ['KUBECONFIG']}")
        return _pytest(arguments, os.environ["KUBECONFIG"])
    with places.one_caller():
        was_up = places.kubeconfig().exists() and kind.answers()
        up()
    try:
        return _pytest(arguments, str(places.kubeconfig()))
    finally:
        if not was_up:
            with places.one_caller():
                down()


def _pytest(arguments: list[str], kubeconfig: str) -> int:
    """Tests that leave each other alone side by side, a file in one process, then those that need the cluster for
    themselves.
    """
    words = [sys.executable, "-m", "pytest", "tests/e2e", *arguments]
    env = {**os.environ, "KUBECONFIG": kubeconfig, "TRAINJOB_E2E": "1"}
    if any(word.startswith(("-n", "-m", "--numprocesses")) for word in arguments):
        return subprocess.run(words, cwd=images.ROOT, env=env, check=False).returncode
    say("tests that can run beside each other")
    together = subprocess.run(
        [*words, "-m", "not alone", "-n", TOGETHER, "--dist", "loadfile"], cwd=images.ROOT, env=env, check=False
    ).returncode
    say("tests that take a part of the cluster away, or measure")
    env["TRAINJOB_E2E_INSTALLED"] = "1"  # the first part has rolled it out
    alone = subprocess.run([*words, "-m", "alone"], cwd=images.ROOT, env=env, check=False).returncode
    failed = [code for code in (together, alone) if code not in (OK, NOTHING)]
    return failed[0] if failed else min(together, alone)


def status() -> None:
    """What runs. Exit code 1: nothing that answers."""
    engine = engines.find()
    print(f"engine: {'none' if engine is None else 'own' if engine.own else 'of this machine'}")
    if engine is not None:
        for name, state in sorted(kind.nodes(engine).items()):
            print(f"node {name}: {state}")
        if engine.own:
            print(f"export DOCKER_HOST={engine.host}")
    if not (places.kubeconfig().exists() and kind.answers()):
        raise SystemExit(1)
    print(f"export KUBECONFIG={places.kubeconfig()}")


def has_registry(engine: Engine) -> bool:
    """Whether published images can be had; asked once a cluster. An own engine is there because nothing else was: it
    asks nobody.
    """
    if engine.own:
        return False
    record = places.cluster_folder() / "registry.json"
    if not record.exists():
        try:
            run(["docker", "pull", "--quiet", "busybox:1.37-musl"], timeout_s=60)
            found = True
        except ToolError:
            found = False
        places.cluster_folder().mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps(found))
    return bool(json.loads(record.read_text()))


def main() -> int:
    """Run one command; errors are one clear text and exit code 1."""
    parser = argparse.ArgumentParser(prog="python -m cluster", description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "command",
        choices=(
            "up",
            "down",
            "check",
            "binaries",
            "prepare",
            "images",
            "kubeconfig",
            "load",
            "peers",
            "status",
            "push",
            "test",
        ),
    )
    parser.add_argument("--registry", default="", help="push: where to, for example registry.example.org/team")
    parser.add_argument("--tag", default="", help="push: the images' tag")
    arguments, rest = parser.parse_known_args()
    if rest and arguments.command != "test":
        parser.error(f"unknown arguments: {' '.join(rest)}")
    begun = time.monotonic()
    try:
        if arguments.command == "status":
            status()
            return 0
        if arguments.command == "kubeconfig":
            print(places.kubeconfig())
            return 0
        if arguments.command in NEED_RIGHTS and not os.environ.get("KUBECONFIG"):
            why = preflight.obstacle()
            if why is not None:
                return _cannot(why, rest, count=arguments.command == "test")
        if arguments.command == "check":
            return 0
        if arguments.command == "test":
            return test(rest)
        if arguments.command == "binaries":
            ahead.binaries()
            return 0
        with places.one_caller():
            _change(arguments)
    except (ToolError, BuildError) as error:
        print(f"cluster: {arguments.command} failed: {error}", file=sys.stderr)
        return 1
    say(f"{arguments.command} took {time.monotonic() - begun:.0f} s")
    return 0


def _cannot(why: str, arguments: list[str], *, count: bool) -> int:
    """Say that there can be no cluster here and, for the tests, how many are skipped for it. A code of its own:
    nothing has failed.
    """
    if count:
        subprocess.run([sys.executable, "-m", "pytest", "tests/e2e", "-q", *arguments], cwd=images.ROOT, check=False)
    print(f"cluster: no cluster can be made on this machine: {why}", file=sys.stderr)
    return preflight.EXIT_CANNOT


def _change(arguments: argparse.Namespace) -> None:
    if arguments.command == "up":
        up()
    elif arguments.command == "prepare":
        ahead.prepare()
    elif arguments.command == "down":
        down()
    elif arguments.command == "peers":
        peers.install(engines.ensure())
    elif arguments.command == "push":
        engine = engines.find()
        for name in images.push(arguments.registry, arguments.tag, public=engine is not None and has_registry(engine)):
            print(name)
    else:
        engine = engines.ensure()
        names = images.build(engine, registry=has_registry(engine))
        if arguments.command == "load":
            images.load(engine, names)
        print("\n".join(names))


if __name__ == "__main__":
    sys.exit(main())

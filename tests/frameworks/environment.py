"""Prints the folder with frameworks, for PYTHONPATH; installs them first where they are missing.

`python tests/frameworks/environment.py requirements.txt`: run by `make test-frameworks` with .venv's Python. The folder is kept between
clones, by what decides its content. Of `requirements-X.txt`, Debian packages of `packages-X.txt` are unpacked into its folder `debian`: no root
is needed. On another system than Debian 12 there are none, and the tests that need them are skipped.

The folder is there under the name `site-packages` too, inside itself: dill, for one, takes what lies elsewhere for the user's own code.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

LIMIT_S = 300
RELEASE = Path("/etc/os-release")
SUITE = "VERSION_CODENAME=bookworm"
"""Debian 12, whose Open MPI is of version 4."""


def folder(requirements: Path) -> Path:
    """Where they are, or will be."""
    content = requirements.read_bytes() + sys.version.encode()
    if _packages(requirements):
        content += packages_file(requirements).read_bytes() + RELEASE.read_bytes()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "trainjob" / f"frameworks-{hashlib.sha256(content).hexdigest()[:12]}"


def packages_file(requirements: Path) -> Path:
    """Which may not be there."""
    return requirements.with_name(requirements.name.replace("requirements", "packages"))


def install(requirements: Path, target: Path) -> None:
    """Whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=target.parent, prefix=".frameworks-"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    try:
        subprocess.run([*pip, "--no-deps", "--target", made, "--requirement", str(requirements)], check=True)
        packages = _packages(requirements)
        if packages:
            unpack(packages, made / "debian")
        made.rename(target)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def link_as_site_packages(target: Path) -> None:
    """Two that make it at once make the same."""
    with contextlib.suppress(FileExistsError):
        (target / "site-packages").symlink_to(".")


def unpack(packages: list[str], target: Path) -> None:
    """By apt-get, with lists of its own where the machine's are missing. Raises CalledProcessError, TimeoutExpired."""
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        (here / "lists" / "partial").mkdir(parents=True)
        (here / "archives" / "partial").mkdir(parents=True)
        own = ["-o", f"Dir::State::lists={here}/lists", "-o", f"Dir::Cache={here}", "-o", "APT::Sandbox::User="]
        apt = ["apt-get", "-qq"]
        try:
            subprocess.run([*apt, "download", *packages], cwd=here, check=True, capture_output=True, timeout=LIMIT_S)
        except subprocess.CalledProcessError:
            subprocess.run([*apt, *own, "update"], check=True, stdout=sys.stderr, timeout=LIMIT_S)
            subprocess.run(
                [*apt, *own, "download", *packages], cwd=here, check=True, stdout=sys.stderr, timeout=LIMIT_S
            )
        for package in sorted(here.glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", str(package), str(target)], check=True, timeout=LIMIT_S)


def _packages(requirements: Path) -> list[str]:
    """None where the machine's system is another: it has other names and versions of them."""
    file = packages_file(requirements)
    if file == requirements or not file.exists():
        return []
    if SUITE not in (RELEASE.read_text(encoding="utf-8") if RELEASE.exists() else ""):
        return []
    return [line for line in file.read_text(encoding="utf-8").split("\n") if line and not line.startswith("#")]


if __name__ == "__main__":
    wanted = Path(__file__).with_name(sys.argv[1])
    if not folder(wanted).is_dir():
        print(f"frameworks: installing {wanted.name} (once)", file=sys.stderr)
        install(wanted, folder(wanted))
    link_as_site_packages(folder(wanted))
    print(folder(wanted))

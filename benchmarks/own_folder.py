"""What `as_directory()` costs for a checkpoint of one file of 1 GiB that lies on a mounted path, by the way it comes to
a folder of its own: `python -m benchmarks.own_folder [--folder F] [--size BYTES]`.

linked: the file is read-only to this user (or a worker's agent has another copy). copied: it could be written to, as by
root, and the file system cannot reflink. reflinked: the same where it can (XFS, made in a loop device: needs root and
mkfs.xfs). The peer is shutil.copyfile in the same place. Times are wall-clock milliseconds, medians.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.figures import Figure
from trainjob.session.own_folder import OwnFolder

ROUNDS = 5


def measure(folder: Path, size: int) -> list[Figure]:
    """All ways that this machine lets us try."""
    figures = _on(folder, size, "linked", expendable=True) + _on(folder, size, "copied", expendable=False)
    with _reflinking(folder, size) as mounted:
        if mounted is not None:
            figures += _on(mounted, size, "reflinked", expendable=False)
    return figures


def _on(folder: Path, size: int, way: str, *, expendable: bool) -> list[Figure]:
    place = Path(tempfile.mkdtemp(dir=folder))
    source = place / "model.pt"
    with source.open("wb") as file:
        for _ in range(size >> 20):
            file.write(os.urandom(1 << 20))
        os.fsync(file.fileno())  # else a reflink would wait for the disk, and a copy is made
    tempfile.tempdir = str(place)
    try:
        mine = [_timed(lambda: _made(place, expendable)) for _ in range(ROUNDS)]
        theirs = [_timed(lambda: _copied(source, place)) for _ in range(ROUNDS)]
    finally:
        tempfile.tempdir = None
        shutil.rmtree(place)
    return [Figure(f"as_directory_{way}_vs_file_copy", "ms", mine, theirs, "shutil.copyfile")]


def _made(place: Path, expendable: bool) -> Path:
    return Path(OwnFolder(_made, str(place), ["model.pt"], expendable).path)


def _copied(source: Path, place: Path) -> Path:
    target = Path(tempfile.mkdtemp(dir=place))
    shutil.copyfile(source, target / "model.pt")
    return target


def _timed(work: Callable[[], Path]) -> float:
    begun = time.perf_counter()
    made = work()
    took = (time.perf_counter() - begun) * 1000
    shutil.rmtree(made)
    return took


@contextlib.contextmanager
def _reflinking(folder: Path, size: int) -> Iterator[Path | None]:
    mkfs = shutil.which("mkfs.xfs", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if os.geteuid() != 0 or mkfs is None:
        print("as_directory_reflinked: left out, needs root and mkfs.xfs")
        yield None
        return
    image, root = folder / "xfs.img", folder / "xfs"
    root.mkdir()
    with image.open("wb") as file:
        file.truncate(3 * size + (512 << 20))
    subprocess.run([mkfs, "-q", "-m", "reflink=1", str(image)], check=True)
    mounted = subprocess.run(["mount", "-t", "xfs", "-o", "loop", str(image), str(root)], check=False)
    image.unlink()  # the loop device keeps it as long as it is mounted
    try:
        yield root if mounted.returncode == 0 else None
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", str(root)], check=True)
        root.rmdir()


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=None, help="where to measure (a temporary folder)")
    parser.add_argument("--size", type=int, default=1 << 30)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for figure in measure(Path(folder), options.size):
            print(figure.line())


if __name__ == "__main__":
    main()

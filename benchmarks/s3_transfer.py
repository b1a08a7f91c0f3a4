"""File sets to and from a real S3 server: our store beside plain boto3, awscrt's client and a bare HTTP client that
throws bytes away.

    PYTHONPATH=tests python -m benchmarks.s3_transfer [--rounds N] [--scale F] [--only SET ...] [--folder F] [--distance
    [DELAY:RATE]]

Called by the checkpoint benchmark too (`measure`). The contenders take turns in processes of their own; what is timed
is the transfer alone: imports, the client and its first connection are made before. The restore of ours verifies every
byte, and so does no other. Goodput counts the files' bytes, CPU the client's process; the server (versitygw, on a
memory file system where there is one) shares the machine.

With `--distance` the server is far (`distance`): what decides is how many requests a contender has under way, and not
what they cost. Whether the machine was the limit all the same is measured too: how many cores the relay alone had, and
how many with client and server.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.distance import Distance, Running, relay
from benchmarks.figures import Figure

GIB = 1 << 30
SETS = {"1x1GiB": (1, GIB), "64x16MiB": (64, 16 << 20), "2000x64KiB": (2000, 64 << 10)}
"""How many files of which size."""
FAR = Distance(delay_s=0.010, rate=10e6)
"""A round trip as stores in the same region have it. The rate is an eighth of what they give a connection: two cores
have to carry all connections.
"""
FAR_SETS = {"1x256MiB": (1, 256 << 20), "32x16MiB": (32, 16 << 20), "1000x64KiB": (1000, 64 << 10)}
NEAR_SOCKETS, FAR_SOCKETS = 8, 64
"""Of the bare client."""
BUCKET = "bench"
KEYS = {
    "AWS_ACCESS_KEY_ID": "bench",
    "AWS_SECRET_ACCESS_KEY": "bench-secret",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
SOCKETS = "TRAINJOB_BENCH_SOCKETS"
"""Tells a turn how many the bare client has."""
RELAY, SERVER = "TRAINJOB_BENCH_RELAY", "TRAINJOB_BENCH_SERVER"
"""Tell a turn at a distance which processes work for it."""
PATIENCE_S = 900.0
Files = list[tuple[str, Path]]
"""(key, local file)."""
Samples = dict[tuple[str, str, str], list[dict[str, float]]]
"""By set, direction and contender."""
WHAT = {"rate": "MiB/s", "cpu": "s/GiB", "memory": "MiB", "relay": "cores", "busy": "cores"}
"""The last two at a distance only: of the relay, and of client, relay and server together."""


def measure(
    rounds: int,
    sets: list[str] | None = None,
    scale: float = 1.0,
    folder: str | None = None,
    distance: Distance | None = None,
) -> list[Figure]:
    """Goodput in MiB/s and CPU seconds per GiB, both ways, of each contender for each set, ours beside each other
    one.
    """
    known, samples = FAR_SETS if distance else SETS, Samples()
    with (
        tempfile.TemporaryDirectory(dir=folder or roomy(), prefix="trainjob-bench-") as place,
        reached(Path(place) / "server", distance) as environment,
    ):
        for name in sets or list(known):
            count, size = known[name]
            _fill(
                Path(place) / "files" / name,
                max(1, int(count * scale)) if count > 1 else 1,
                size if count > 1 else max(1, int(size * scale)),
            )
            for number in range(rounds):
                for contender in _rotated(list(CONTENDERS), number):
                    for direction, result in _turn(
                        contender, environment, Path(place), name, f"{contender}-{number}"
                    ).items():
                        samples.setdefault((name, direction, contender), []).append(result)
            shutil.rmtree(Path(place) / "files" / name)
    return list(_figures(samples, "s3_far" if distance else "s3"))


def _rotated(names: list[str], by: int) -> list[str]:
    """Nobody is always first: a virtual machine hands memory out slowly the first time."""
    return names[by % len(names) :] + names[: by % len(names)]


def _figures(samples: Samples, prefix: str) -> Iterator[Figure]:
    for (name, direction, contender), theirs in samples.items():
        ours = samples[name, direction, "ours"]
        if contender != "ours" and theirs:
            for what in theirs[0]:
                yield Figure(
                    f"{prefix}_{direction}_{what}_{name}_vs_{contender}",
                    WHAT[what],
                    [s[what] for s in ours],
                    [s[what] for s in theirs],
                    contender,
                )


def roomy() -> str | None:
    """A folder in memory, where there is room for it."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) and shutil.disk_usage("/dev/shm").free > 6 * GIB else None


def _fill(folder: Path, count: int, size: int) -> None:
    folder.mkdir(parents=True)
    block = os.urandom(1 << 20)
    for number in range(count):
        with (folder / f"part-{number:05}.bin").open("wb") as file:
            for at in range(0, size, len(block)):
                file.write(block[: size - at])


@contextlib.contextmanager
def server(root: Path) -> Iterator[Running]:
    """versitygw on that folder, with kept connections as real stores have them."""
    from cluster.binaries import binary

    (root / BUCKET).mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as chosen:
        port = chosen.getsockname()[1]
    env = {
        "PATH": os.environ["PATH"],
        "ROOT_ACCESS_KEY": KEYS["AWS_ACCESS_KEY_ID"],
        "ROOT_SECRET_KEY": KEYS["AWS_SECRET_ACCESS_KEY"],
    }
    words = [str(binary("versitygw")), "--quiet", "--keep-alive", "--port", f"127.0.0.1:{port}", "posix", str(root)]
    process = subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("versitygw does not listen")
            time.sleep(0.05)
        yield Running(f"127.0.0.1:{port}", process.pid)
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def reached(root: Path, distance: Distance | None) -> Iterator[dict[str, str]]:
    """A server, near or far, and the environment in which a turn finds it."""
    with server(root) as at:
        if distance is None:
            yield {**_environment(at.address), SOCKETS: str(NEAR_SOCKETS)}
            return
        with relay(at.address, distance) as through:
            yield {
                **_environment(through.address),
                SOCKETS: str(FAR_SOCKETS),
                RELAY: str(through.pid),
                SERVER: str(at.pid),
            }


def _environment(address: str) -> dict[str, str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
    place = {
        "AWS_ENDPOINT_URL_S3": f"http://{address}",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "NO_PROXY": "127.0.0.1",
    }
    return {**env, **KEYS, **place}


def _turn(contender: str, env: dict[str, str], place: Path, name: str, prefix: str) -> dict[str, dict[str, float]]:
    """One contender's upload and download, in a process of its own."""
    words = [
        sys.executable,
        "-m",
        "benchmarks.s3_transfer",
        "--turn",
        contender,
        str(place / "files" / name),
        str(place / "brought"),
        prefix,
    ]
    done = subprocess.run(words, env=env, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=True)
    shutil.rmtree(place / "server" / BUCKET / prefix, ignore_errors=True)
    shutil.rmtree(place / "brought", ignore_errors=True)
    found: dict[str, dict[str, float]] = json.loads(done.stdout)
    return found


# -- in the process of a turn ------------------------------------------------------------------------------------------


def turn(contender: str, source: Path, brought: Path, prefix: str) -> dict[str, dict[str, float]]:
    """Both ways, timed."""
    names = sorted(path.name for path in source.iterdir())
    brought.mkdir()
    up = [(f"{prefix}/{name}", source / name) for name in names]
    down = [(f"{prefix}/{name}", brought / name) for name in names]
    send, receive = CONTENDERS[contender]()
    total = sum(path.stat().st_size for _, path in up)
    results: dict[str, dict[str, float]] = {}
    for direction, work, files in (("upload", send, up), ("restore", receive, down)):
        results[direction] = _timed(work(files), total)
    return results


def _timed(work: Callable[[], object], total: int) -> dict[str, float]:
    others, before, began = _spent_by_others(), resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    work()
    took, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    own = {"rate": total / took / (1 << 20), "cpu": cpu * GIB / total, "memory": after.ru_maxrss / 1024}
    if not others:
        return own
    of_relay, of_server = (now - then for then, now in zip(others, _spent_by_others(), strict=True))
    return {**own, "relay": of_relay / took, "busy": (cpu + of_relay + of_server) / took}


def _spent_by_others() -> list[float]:
    """Seconds of processor time of the relay and the server; nothing without a relay."""
    found = []
    for name in (RELAY, SERVER) if RELAY in os.environ else ():
        fields = Path(f"/proc/{os.environ[name]}/stat").read_text().rpartition(")")[2].split()
        found.append((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
    return found


Transfer = Callable[[Files], Callable[[], object]]
"""Prepares; what it returns is timed."""
Pair = tuple[Transfer, Transfer]


def _prepared(work: Callable[[Files], None]) -> Transfer:
    return lambda files: lambda: work(files)


def ours() -> Pair:
    """What a worker's storage child does: a rank's share on the way up, its record with it; all files compared with
    the manifest on the way down.
    """
    from trainjob.checkpoint.publishing.shares import Share, commit, share
    from trainjob.checkpoint.reading import stored
    from trainjob.checkpoint.records import layout
    from trainjob.checkpoint.records.identity import CheckpointId
    from trainjob.checkpoint.records.manifest import NoteFile, ReleaseNote
    from trainjob.checkpoint.stores.opening import open_store

    open_store(f"s3://{BUCKET}").read("warm")
    id_ = CheckpointId(1, 1, 1)

    def send(files: Files) -> Callable[[], object]:
        store, listed = (
            open_store(f"s3://{BUCKET}/{Path(files[0][0]).parent}"),
            [(path.name, path.stat().st_size) for _, path in files],
        )
        return lambda: share(store, Share(id_, 0, str(files[0][1].parent), listed))

    def receive(files: Files) -> Callable[[], object]:
        folder = Path(files[0][0]).parent
        store = open_store(f"s3://{BUCKET}/{folder}")
        sizes = {
            Path(key).name: size for key, size in store.sizes(layout.folder(id_)).items() if layout.RESERVED not in key
        }
        note = ReleaseNote(
            id_, None, 1, None, None, {}, 0.0, 1, 1, tuple(NoteFile(name, size, 0) for name, size in sizes.items())
        )
        manifest = commit(store, note, "bench").manifest
        if manifest is None or len(manifest.entries) != len(files):
            raise RuntimeError(f"{folder} is not whole")
        return lambda: stored.fetch(store, layout.folder(id_), manifest.entries, str(files[0][1].parent))

    return send, receive


def _client(signature_version: str | None = None) -> Any:
    import boto3
    from botocore.config import Config

    client = boto3.session.Session().client("s3", config=Config(signature_version=signature_version))
    client.list_objects_v2(Bucket=BUCKET, MaxKeys=1)
    return client


def plain() -> Pair:
    """upload_file and download_file, one file after the other, as everybody writes it."""
    client = _client()

    def send(files: Files) -> None:
        for key, path in files:
            client.upload_file(str(path), BUCKET, key)

    def receive(files: Files) -> None:
        for key, path in files:
            client.download_file(BUCKET, key, str(path))

    return _prepared(send), _prepared(receive)


def awscrt() -> Pair:
    """awscrt's own S3 client, all files at once."""
    from awscrt import s3
    from awscrt.auth import AwsCredentialsProvider
    from awscrt.http import HttpHeaders, HttpRequest
    from awscrt.io import ClientBootstrap, ClientTlsContext, DefaultHostResolver, EventLoopGroup, TlsContextOptions

    del ClientTlsContext, TlsContextOptions
    loops = EventLoopGroup(2)
    provider = AwsCredentialsProvider.new_static(KEYS["AWS_ACCESS_KEY_ID"], KEYS["AWS_SECRET_ACCESS_KEY"])
    client = s3.S3Client(
        bootstrap=ClientBootstrap(loops, DefaultHostResolver(loops)),
        region=KEYS["AWS_REGION"],
        credential_provider=provider,
        tls_mode=s3.S3RequestTlsMode.DISABLED,
        part_size=8 << 20,
        throughput_target_gbps=10,
    )
    host = urlsplit(os.environ["AWS_ENDPOINT_URL_S3"]).netloc

    def request(kind: Any, method: str, files: Files, **fields: Callable[[Path], Any]) -> None:
        waiting = []
        for key, path in files:
            headers = HttpHeaders([("host", host)])
            if method == "PUT":
                headers.add("Content-Length", str(path.stat().st_size))
            more = {name: value(path) for name, value in fields.items()}
            waiting.append(
                client.make_request(
                    request=HttpRequest(method, f"/{BUCKET}/{key}", headers), type=kind, **more
                ).finished_future
            )
        for future in waiting:
            future.result(PATIENCE_S)

    def send(files: Files) -> None:
        checksum = s3.S3ChecksumConfig(algorithm=s3.S3ChecksumAlgorithm.CRC32, location=s3.S3ChecksumLocation.HEADER)
        request(s3.S3RequestType.PUT_OBJECT, "PUT", files, send_filepath=str, checksum_config=lambda _path: checksum)

    def receive(files: Files) -> None:
        request(s3.S3RequestType.GET_OBJECT, "GET", files, recv_filepath=str)

    return _prepared(send), _prepared(receive)


def bare() -> Pair:
    """What the server gives: presigned requests on plain sockets by threads that look at nothing, the bytes from
    memory and thrown away.
    """
    client = _client("s3v4")
    sizes: dict[str, int] = {}

    def send(files: Files) -> Callable[[], None]:
        sizes.update((key, path.stat().st_size) for key, path in files)
        jobs = [
            (_request(client, "PUT", "put_object", key, f"Content-Length: {sizes[key]}"), path.read_bytes())
            for key, path in files
        ]
        return lambda: _side_by_side(client, jobs)

    def receive(files: Files) -> Callable[[], None]:
        jobs = []
        for key, _ in files:
            for at in range(0, sizes[key], 8 << 20):
                jobs.append(
                    (
                        _request(
                            client, "GET", "get_object", key, f"Range: bytes={at}-{min(sizes[key], at + (8 << 20)) - 1}"
                        ),
                        b"",
                    )
                )
        return lambda: _side_by_side(client, jobs)

    return send, receive


def _request(client: Any, method: str, operation: str, key: str, header: str) -> bytes:
    url = urlsplit(client.generate_presigned_url(operation, Params={"Bucket": BUCKET, "Key": key}))
    return f"{method} {url.path}?{url.query} HTTP/1.1\r\nHost: {url.netloc}\r\n{header}\r\n\r\n".encode()


def _side_by_side(client: Any, jobs: list[tuple[bytes, bytes]]) -> None:
    where = urlsplit(client.meta.endpoint_url)
    failed: list[BaseException] = []

    def run() -> None:
        try:
            _drain(str(where.hostname), int(where.port or 80), jobs)
        except BaseException as error:
            failed.append(error)

    team = [threading.Thread(target=run) for _ in range(int(os.environ[SOCKETS]))]
    for thread in team:
        thread.start()
    for thread in team:
        thread.join()
    if failed:
        raise failed[0]


def _drain(host: str, port: int, jobs: list[tuple[bytes, bytes]]) -> None:
    buffer = bytearray(1 << 20)
    with socket.create_connection((host, port)) as connection:
        while True:
            try:
                request, body = jobs.pop()
            except IndexError:
                return
            connection.sendall(request)
            connection.sendall(body)
            head = b""
            while b"\r\n\r\n" not in head:
                head += connection.recv(65536)
            head, _, first = head.partition(b"\r\n\r\n")
            if b" 20" not in head[:12]:
                raise RuntimeError(f"{request!r}: {head!r} {first!r}")
            lines = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
            left = int(lines[b"content-length"]) - len(first)
            while left > 0:
                left -= connection.recv_into(buffer, min(left, len(buffer)))


CONTENDERS: dict[str, Callable[[], Pair]] = {"ours": ours, "boto3": plain, "awscrt": awscrt, "bare": bare}


def _distance(text: str) -> Distance:
    delay_s, rate = map(float, text.split(":"))
    return Distance(delay_s, rate * 1e6)


def main() -> int:
    """Measure, or be one turn of it."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.s3_transfer",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=3, help="how often each contender has its turn (default: 3)")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="share of the sets' bytes, for a quick look (default: 1)"
    )
    parser.add_argument(
        "--only", nargs="+", metavar="SET", help=f"some of: {', '.join(SETS)}; far: {', '.join(FAR_SETS)}"
    )
    parser.add_argument("--folder", help="where files and server lie (default: /dev/shm, if there is room)")
    parser.add_argument(
        "--distance",
        nargs="?",
        const=FAR,
        type=_distance,
        metavar="DELAY:RATE",
        help=f"the server is far: seconds one way, MB/s of a connection (default: {FAR.delay_s}:{FAR.rate / 1e6:g})",
    )
    parser.add_argument("--turn", nargs=4, metavar=("CONTENDER", "SOURCE", "BROUGHT", "PREFIX"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.turn:
        contender, source, brought, prefix = args.turn
        print(json.dumps(turn(contender, Path(source), Path(brought), prefix)))
        return 0
    unknown = set(args.only or ()) - set(FAR_SETS if args.distance else SETS)
    if unknown:
        parser.error(f"no such set here: {', '.join(sorted(unknown))}")
    for figure in measure(args.rounds, args.only, args.scale, args.folder, args.distance):
        print(figure.line(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

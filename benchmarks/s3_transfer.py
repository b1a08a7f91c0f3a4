"""File sets to and from a real S3 server: our store beside plain boto3, awscrt's client and a bare HTTP client that throws bytes away.

    PYTHONPATH=tests python -m benchmarks.s3_transfer [--rounds N] [--scale F] [--only SET ...] [--folder F]

Called by the checkpoint benchmark too (`measure`). The contenders take turns in processes of their own; what is timed is the transfer alone:
imports, the client and its first connection are made before. The restore of ours verifies every byte, and so does no other. Goodput counts the
files' bytes, CPU the client's process; the server (versitygw, on a memory file system where there is one) shares the machine.
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

from benchmarks.figures import Figure

GIB = 1 << 30
SETS = {"1x1GiB": (1, GIB), "64x16MiB": (64, 16 << 20), "2000x64KiB": (2000, 64 << 10)}
"""How many files of which size."""
BUCKET = "bench"
KEYS = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench-secret", "AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
PATIENCE_S = 900.0
Files = list[tuple[str, Path]]
"""(key, local file)."""


def measure(rounds: int, sets: list[str] | None = None, scale: float = 1.0, folder: str | None = None) -> list[Figure]:
    """Goodput in MiB/s and CPU seconds per GiB, both ways, of each contender for each set, ours beside each other one."""
    samples: dict[tuple[str, str, str], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(dir=folder or roomy(), prefix="trainjob-bench-") as place, server(Path(place) / "server") as endpoint:
        for name in sets or list(SETS):
            count, size = SETS[name]
            _fill(Path(place) / "files" / name, max(1, int(count * scale)) if count > 1 else 1, size if count > 1 else max(1, int(size * scale)))
            for number in range(rounds):
                for contender in CONTENDERS:
                    for direction, result in _turn(contender, endpoint, Path(place), name, f"{contender}-{number}").items():
                        samples.setdefault((name, direction, contender), []).append(result)
            shutil.rmtree(Path(place) / "files" / name)
    return list(_figures(samples))


def _figures(samples: dict[tuple[str, str, str], list[dict[str, float]]]) -> Iterator[Figure]:
    for (name, direction, contender), theirs in samples.items():
        ours = samples[name, direction, "ours"]
        if contender != "ours" and theirs:
            for what, unit in (("rate", "MiB/s"), ("cpu", "s/GiB"), ("memory", "MiB")):
                yield Figure(f"s3_{direction}_{what}_{name}_vs_{contender}", unit, [s[what] for s in ours], [s[what] for s in theirs], contender)


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
def server(root: Path) -> Iterator[str]:
    """versitygw on that folder, with kept connections as real stores have them; its endpoint."""
    from cluster.binaries import binary

    (root / BUCKET).mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as chosen:
        port = chosen.getsockname()[1]
    env = {"PATH": os.environ["PATH"], "ROOT_ACCESS_KEY": KEYS["AWS_ACCESS_KEY_ID"], "ROOT_SECRET_KEY": KEYS["AWS_SECRET_ACCESS_KEY"]}
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
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _turn(contender: str, endpoint: str, place: Path, name: str, prefix: str) -> dict[str, dict[str, float]]:
    """One contender's upload and download, in a process of its own."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
    env.update(KEYS, AWS_ENDPOINT_URL_S3=endpoint, AWS_CONFIG_FILE=os.devnull, AWS_SHARED_CREDENTIALS_FILE=os.devnull, NO_PROXY="127.0.0.1")
    words = [sys.executable, "-m", "benchmarks.s3_transfer", "--turn", contender, str(place / "files" / name), str(place / "brought"), prefix]
    done = subprocess.run(words, env=env, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=True)
    shutil.rmtree(place / "server" / BUCKET / prefix, ignore_errors=True)
    shutil.rmtree(place / "brought", ignore_errors=True)
    found: dict[str, dict[str, float]] = json.loads(done.stdout)
    return found


# -- in the process of a turn -------------------------------------------------------------------------------------------


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


def _timed(work: Callable[[], None], total: int) -> dict[str, float]:
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    work()
    took, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"rate": total / took / (1 << 20), "cpu": cpu * GIB / total, "memory": after.ru_maxrss / 1024}


Transfer = Callable[[Files], Callable[[], None]]
"""Prepares; what it returns is timed."""
Pair = tuple[Transfer, Transfer]


def _prepared(work: Callable[[Files], None]) -> Transfer:
    return lambda files: lambda: work(files)


def ours() -> Pair:
    """The store as shares and restores use it: some files at a time, verified on the way down."""
    from trainjob.checkpoint import transfer
    from trainjob.checkpoint.opening import open_store

    store = open_store(f"s3://{BUCKET}")
    store.read("warm")
    kept: dict[str, Any] = {}

    def send(files: Files) -> None:
        def one(file: tuple[str, Path]) -> None:
            kept[file[0]] = store.upload(file[0], str(file[1]), transfer.nothing)

        transfer.each(files, one, store.at_once)

    def receive(files: Files) -> None:
        def one(file: tuple[str, Path]) -> None:
            if store.download(file[0], str(file[1]), transfer.nothing, store.algorithm) != kept[file[0]]:
                raise RuntimeError(f"{file[0]} is damaged")

        transfer.each(files, one, store.at_once)

    return _prepared(send), _prepared(receive)


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
            waiting.append(client.make_request(request=HttpRequest(method, f"/{BUCKET}/{key}", headers), type=kind, **more).finished_future)
        for future in waiting:
            future.result(PATIENCE_S)

    def send(files: Files) -> None:
        checksum = s3.S3ChecksumConfig(algorithm=s3.S3ChecksumAlgorithm.CRC32, location=s3.S3ChecksumLocation.HEADER)
        request(s3.S3RequestType.PUT_OBJECT, "PUT", files, send_filepath=str, checksum_config=lambda _path: checksum)

    def receive(files: Files) -> None:
        request(s3.S3RequestType.GET_OBJECT, "GET", files, recv_filepath=str)

    return _prepared(send), _prepared(receive)


def bare() -> Pair:
    """What the server gives: presigned requests on plain sockets by threads that look at nothing, the bytes from memory and thrown away."""
    client = _client("s3v4")

    def send(files: Files) -> Callable[[], None]:
        jobs = [(_request(client, "PUT", "put_object", key, f"Content-Length: {path.stat().st_size}"), path.read_bytes()) for key, path in files]
        return lambda: _side_by_side(client, jobs)

    def receive(files: Files) -> Callable[[], None]:
        jobs = []
        for key, _ in files:
            size = int(client.head_object(Bucket=BUCKET, Key=key)["ContentLength"])
            for at in range(0, size, 8 << 20):
                jobs.append((_request(client, "GET", "get_object", key, f"Range: bytes={at}-{min(size, at + (8 << 20)) - 1}"), b""))
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

    team = [threading.Thread(target=run) for _ in range(8)]
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


def main() -> int:
    """Measure, or be one turn of it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.s3_transfer", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often each contender has its turn (default: 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the sets' bytes, for a quick look (default: 1)")
    parser.add_argument("--only", nargs="+", choices=sorted(SETS), metavar="SET", help=f"some of: {', '.join(SETS)}")
    parser.add_argument("--folder", help="where files and server lie (default: /dev/shm, if there is room)")
    parser.add_argument("--turn", nargs=4, metavar=("CONTENDER", "SOURCE", "BROUGHT", "PREFIX"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.turn:
        contender, source, brought, prefix = args.turn
        print(json.dumps(turn(contender, Path(source), Path(brought), prefix)))
        return 0
    for figure in measure(args.rounds, args.only, args.scale, args.folder):
        print(figure.line(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

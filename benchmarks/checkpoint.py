"""What checkpoints cost, one line per figure: `name value unit`, or with a peer `name ours peer ratio`. `make
bench-checkpoint` runs it.

    PYTHONPATH=tests python -m benchmarks.checkpoint [--rounds N] [--only NAME ...] [--scale F] [--folder F] [--results
    FOLDER]

`dict`: processor time of `Checkpoint.from_dict` and `to_dict`, beside torch.save and torch.load.
`save`: how long a step is blocked while 1 GiB is saved, and until it is durable, beside one memory copy, torch.save to
the mounted folder, torch.distributed.checkpoint's async_save (all in one rank, in turn), and Ray Train's report and
DLRover's Flash Checkpoint where they are. `restore`: after a worker died, from the own staging and from a peer, beside
plain boto3 and what the S3 server gives in the same round. `s3`: file sets to and from a real S3 server. `far`: smaller
sets, and the server at a distance. Everything lies in memory where there is room, so that no disk is measured; both
sides of a comparison always use the same place. Raw samples are kept as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import s3_transfer
from benchmarks.figures import Figure
from benchmarks.jobs import DLROVER, ENVIRONMENT, RAY, WORKLOADS, dlrover_run
from benchmarks.measuring import arguments, measure

GIB = 1 << 30
MIB = 1 << 20
PATIENCE_S = 1800.0
Sample = dict[str, float]


@dataclass(frozen=True)
class Plan:
    """How much is measured, and where."""

    rounds: int
    scale: float
    folder: str | None

    @property
    def size(self) -> int:
        """Bytes of a save, whole MiB."""
        return max(1, int(GIB * self.scale) // MIB) * MIB


def dicts(plan: Plan) -> list[Figure]:
    """In one process, without a job."""
    with tempfile.TemporaryDirectory(dir=plan.folder, prefix="tj-bench-") as name:
        notes = Path(name) / "notes"
        words = [sys.executable, str(WORKLOADS / "dicts.py"), str(notes), str(plan.rounds), str(plan.size)]
        rows = _run(words, notes, {**os.environ, **ENVIRONMENT, "TMPDIR": name})

    def of(way: str) -> list[float]:
        return [row[way] * GIB / plan.size for row in rows]

    return [
        Figure("from_dict_cpu_vs_torch_save", "s/GiB", of("from_dict"), of("save"), "torch.save"),
        Figure("to_dict_cpu_vs_torch_load", "s/GiB", of("to_dict"), of("load"), "torch.load"),
    ]


def save(plan: Plan) -> list[Figure]:
    """Every way in turn, in one rank; Ray Train's and DLRover's in processes of their own after it."""
    with tempfile.TemporaryDirectory(dir=plan.folder, prefix="tj-bench-") as name:
        folder = Path(name)
        mounted, checkpoints = folder / "mounted", folder / "storage" / "default" / "saving" / "checkpoints"
        mounted.mkdir()
        arguments = [str(plan.rounds), str(plan.size), str(mounted), str(checkpoints)]
        rows = _job(folder, "saving", 1, arguments, "--keep", "1")
        ray, dlrover = _ray(plan, folder), _dlrover(plan, folder)

    def of(way: str, what: str, unit: float = 1.0) -> list[float]:
        return [row[what] * unit for row in rows if row["way"] == way]

    whole = [row["write"] + row["blocked"] for row in rows if row["way"] == "moved"]
    durable = [row["write"] + row["durable"] for row in rows if row["way"] == "moved"]
    figures = [
        Figure("save_blocked_moved", "ms", of("moved", "blocked", 1e3)),
        Figure(
            "save_blocked_copied_vs_memory_copy", "s", of("copied", "blocked"), of("copy", "blocked"), "tensor.clone()"
        ),
        Figure(
            "save_blocked_copied_vs_file_copy", "s", of("copied", "blocked"), of("file", "blocked"), "shutil.copyfile"
        ),
        Figure(
            "save_blocked_with_torch_save_vs_mounted",
            "s",
            whole,
            of("mounted", "blocked"),
            "torch.save to the mounted folder",
        ),
        Figure(
            "save_blocked_with_torch_save_vs_dcp_async",
            "s",
            whole,
            of("dcp", "blocked"),
            "torch.distributed.checkpoint.async_save",
        ),
        Figure("save_blocked_from_dict_vs_torch_save", "s", of("dict", "blocked"), whole, "torch.save and report()"),
        Figure("save_blocked_sharded_vs_torch_save", "s", of("sharded", "blocked"), whole, "torch.save and report()"),
        Figure("save_durable_vs_mounted", "s", durable, of("mounted", "durable"), "torch.save and fsync"),
        Figure(
            "save_durable_vs_dcp_async", "s", durable, of("dcp", "durable"), "torch.distributed.checkpoint.async_save"
        ),
        Figure("save_cpu_of_agent_and_child", "s/GiB", of("moved", "cpu", GIB / plan.size)),
        Figure("peak_memory_of_agent", "MiB", of("moved", "peak_agent")),
        Figure("peak_memory_of_child", "MiB", of("moved", "peak_child")),
    ]
    if ray:
        figures.append(Figure("save_blocked_copied_vs_ray", "s", of("copied", "blocked"), ray, "Ray Train's report()"))
    if dlrover:
        flash = "DLRover's Flash Checkpoint"
        figures.append(Figure("save_blocked_with_torch_save_vs_dlrover", "s", whole, dlrover, flash))
        figures.append(Figure("save_blocked_from_dict_vs_dlrover", "s", of("dict", "blocked"), dlrover, flash))
    return figures


def restore(plan: Plan) -> list[Figure]:
    """Own staging, a peer, and in the same round plain boto3 and a bare client at the S3 server."""
    staging: list[float] = []
    peer: list[float] = []
    others: dict[str, list[float]] = {}
    for _ in range(plan.rounds):
        with tempfile.TemporaryDirectory(dir=plan.folder, prefix="tj-bench-") as name:
            rows = _without_storage(
                Path(name), [str(WORKLOADS / "restoring.py"), str(Path(name) / "notes"), "2", str(plan.size)]
            )
        staging += [row["took"] * 1e3 for row in rows if row["rank"] == 0]
        peer += [plan.size / MIB / row["took"] for row in rows if row["rank"] == 1]
        for figure in s3_transfer.measure(1, ["1x1GiB"], plan.scale, plan.folder):
            if figure.name.startswith("s3_restore_rate"):
                others.setdefault(figure.peer_name, []).extend(figure.peer)
                others.setdefault("ours", []).extend(figure.samples if figure.peer_name == "boto3" else ())
    return [
        Figure("restore_from_own_staging", "ms", staging),
        Figure("restore_from_peer_vs_boto3", "MiB/s", peer, others["boto3"], "boto3 download_file"),
        Figure("restore_from_s3_vs_boto3", "MiB/s", others["ours"], others["boto3"], "boto3 download_file"),
        Figure("restore_from_s3_vs_bare", "MiB/s", others["ours"], others["bare"], "sockets that throw the bytes away"),
    ]


def s3(plan: Plan) -> list[Figure]:
    """All file sets."""
    return s3_transfer.measure(plan.rounds, None, plan.scale, plan.folder)


def far(plan: Plan) -> list[Figure]:
    """Smaller sets, at a distance."""
    return s3_transfer.measure(plan.rounds, None, plan.scale, plan.folder, s3_transfer.FAR)


def _job(folder: Path, workload: str, workers: int, arguments: Sequence[str], *options: str) -> list[Sample]:
    """Run a workload under TrainJob, everything of it below the folder; its notes."""
    notes = folder / "notes"
    words = [
        sys.executable,
        "-m",
        "trainjob.cli",
        "run",
        str(WORKLOADS / f"{workload}.py"),
        "--name",
        workload,
        "--workers",
        str(workers),
    ]
    words += ["--storage", str(folder / "storage"), "--plain", *options, "--", str(notes), *arguments]
    scratch = folder / "tmp"
    scratch.mkdir()
    return _run(words, notes, {**os.environ, **ENVIRONMENT, "TMPDIR": str(scratch)})


def _without_storage(folder: Path, command: Sequence[str]) -> list[Sample]:
    """A job of two workers that has nothing but its agents' staging; its notes."""
    container = {"name": "trainer", "image": "local", "command": [sys.executable, *command]}
    spec = {"workers": 2, "failurePolicy": {"maxFailures": -1}, "template": {"spec": {"containers": [container]}}}
    manifest, scratch = folder / "job.yaml", folder / "tmp"
    manifest.write_text(
        json.dumps(
            {"apiVersion": "trainjob.dev/v1alpha1", "kind": "TrainJob", "metadata": {"name": "restoring"}, "spec": spec}
        )
    )
    scratch.mkdir()
    words = [sys.executable, "-m", "trainjob.cli", "run", "-f", str(manifest), "--local", "--plain"]
    return _run(words, folder / "notes", {**os.environ, **ENVIRONMENT, "TMPDIR": str(scratch)})


def _ray(plan: Plan, folder: Path) -> list[float]:
    python = RAY.python()
    return [] if python is None else _blocked(plan, folder, [python], "ray")


def _dlrover(plan: Plan, folder: Path) -> list[float]:
    python = DLROVER.python()
    return [] if python is None else _blocked(plan, folder, dlrover_run(python, 1), "dlrover")


def _blocked(plan: Plan, folder: Path, command: Sequence[str], way: str) -> list[float]:
    """By the peer's own script."""
    notes, storage = folder / f"{way}-notes", folder / way
    arguments = [str(notes), str(plan.rounds), str(plan.size), str(storage)]
    words = [*command, str(WORKLOADS / f"{way}_saving.py"), *arguments]
    return [row["blocked"] for row in _run(words, notes, {**os.environ, "OMP_NUM_THREADS": "1"})]


def _run(words: list[str], notes: Path, environment: dict[str, str]) -> list[Sample]:
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-5000:]}")
    return [json.loads(line) for line in notes.read_text().splitlines()]


MEASUREMENTS: dict[str, Callable[[Plan], list[Figure]]] = {
    "dict": dicts,
    "save": save,
    "restore": restore,
    "s3": s3,
    "far": far,
}


def main() -> int:
    """Measure what was asked for."""
    parser = arguments("python -m benchmarks.checkpoint", __doc__, MEASUREMENTS)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the bytes, for a quick look (default: 1)")
    parser.add_argument(
        "--folder", default=s3_transfer.roomy(), help="where everything lies (default: /dev/shm, if there is room)"
    )
    args = parser.parse_args()
    return measure(args, lambda name: MEASUREMENTS[name](Plan(args.rounds, args.scale, args.folder)))


if __name__ == "__main__":
    sys.exit(main())

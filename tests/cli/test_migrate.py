"""`tj migrate`: imports are rewritten and nothing else, what differs is told by line, manifests become valid TrainJobs."""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from trainjob.cli.main import main
from trainjob.cli.migrate.script import migrate
from trainjob_api.v1alpha1 import TrainJob
from trainjob_api.validation import parse_trainjob


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import ray", "from trainjob.compat import ray"),
        ("import ray.train.torch", "from trainjob.compat import ray"),
        ("import ray.train as rt", "from trainjob.compat.ray import train as rt"),
        ("import ray as r", "from trainjob.compat import ray as r"),
        ("import os, ray.train, sys", "import os\nfrom trainjob.compat import ray\nimport sys"),
        ("import ray, ray.train", "from trainjob.compat import ray"),
        ("import ray\nimport ray.train\nx = 1", "from trainjob.compat import ray\nx = 1"),
        (
            "import ray\nimport ray.data as d",
            "from trainjob.compat import ray\nfrom trainjob.compat.ray import data as d",
        ),
        (
            "import ray\nimport ray.train  # why\ndef f():\n    import ray",
            "from trainjob.compat import ray\nfrom trainjob.compat import ray  # why\n"
            "def f():\n    from trainjob.compat import ray",
        ),
        ("x = 1; import os, ray", "x = 1; import os; from trainjob.compat import ray"),
        ("from ray import train, tune", "from trainjob.compat.ray import train, tune"),
        ("from ray.train import report as r", "from trainjob import report as r"),
        ("from ray.train.torch import TorchTrainer", "from trainjob import TorchTrainer"),
        ("from ray.train import report, SyncConfig", "from trainjob.compat.ray.train import report, SyncConfig"),
        ("from ray.train import *", "from trainjob.compat.ray.train import *"),
        ("from ray.train import (  # all\n    report,  # it\n)", "from trainjob import (  # all\n    report,  # it\n)"),
        ("from ray . train import report", "from trainjob import report"),
        ("from \\\n  ray.train import report", "from trainjob import report"),
        ("é = 'ü'; import ray", "é = 'ü'; from trainjob.compat import ray"),
        (
            "import raytracing\nfrom rayon import x\nfrom . import ray",
            "import raytracing\nfrom rayon import x\nfrom . import ray",
        ),
        ("s = 'import ray'  # import ray", "s = 'import ray'  # import ray"),
        ("if 1:\r\n    import os, ray\r\n", "if 1:\r\n    import os\n    from trainjob.compat import ray\r\n"),
        ("a = '\u2028'; x = 1\nimport ray", "a = '\u2028'; x = 1\nfrom trainjob.compat import ray"),
    ],
)
def test_imports_are_rewritten_and_nothing_else(before: str, after: str) -> None:
    found = migrate(before)
    assert found.text == after
    ast.parse(found.text)
    assert migrate(found.text) == (found.text, [], 0), "once is enough"


@given(
    st.lists(
        st.sampled_from(
            ["x = 'ü'", "import ray", "if x: pass", "# é import ray", "from ray.train import report", "", "\t# tab"]
        ),
        min_size=1,
    )
)
def test_the_rest_of_a_script_stays_byte_for_byte(lines: list[str]) -> None:
    found = migrate("\n".join(lines)).text.split("\n")
    again = [at for at, line in enumerate(lines) if line == "import ray" and line in lines[:at]]
    gone = set(again) - {len(lines) - 1}  # the last line has no end that could go with it
    kept = [line for at, line in enumerate(lines) if at not in gone]
    assert len(found) == len(kept)
    for before, after in zip(kept, found, strict=True):
        assert before == after or after.startswith("from trainjob") or (before == "import ray" and not after)


SCRIPT = """\
import ray
from ray import train, tune
from ray.train import RunConfig, FailureConfig, SyncConfig
from ray.train.torch import TorchTrainer

def loop(config):
    start = 3
    for i, batch in enumerate(train.torch.prepare_data_loader(loader)):
        if i < start:
            continue
        ray.train.report({"loss": 1}, checkpoint_dir_name="x")
    ds = ray.data.read_csv("x")

TorchTrainer(
    loop,
    datasets={},
    scaling_config=train.ScalingConfig(num_workers=(1, 2)),
    run_config=RunConfig(failure_config=FailureConfig(fail_fast=True)),
)
"""


def test_what_differs_is_told_by_line() -> None:
    notes = migrate(SCRIPT).notes
    said = {line: [note.text for note in notes if note.line == line] for line in {note.line for note in notes}}
    missing = {note.line for note in notes if note.missing}
    assert missing == {3, 12, 16, 18}
    assert any(text.startswith("ray.tune: of it only") and "one job per trial" in text for text in said[2])
    assert any("ray.train.SyncConfig has no counterpart" in text for text in said[3])
    assert any("resumes inside an epoch by itself" in text for text in said[8])
    assert said[9][0].endswith("resume=False) and keep it")
    assert any(text.startswith("report(checkpoint_dir_name=)") for text in said[11])
    assert said[12] == [
        "ray.data has no counterpart in TrainJob: read data with a torch DataLoader and ray.train.torch.prepare_data_loader"
    ]
    assert 17 not in said, "an elastic size is ours as well"
    assert any("FailureConfig(fail_fast=)" in text for text in said[18])


@pytest.mark.parametrize(
    ("loop", "line"),
    [
        ("for i, b in enumerate(loader):\n    if epoch == first and i < start:\n        continue\n", 2),
        (
            "for i, b in enumerate(loader):\n    x, y = b\n    if start > i:\n        bar.update()\n        continue\n",
            3,
        ),
        ("for i, b in tqdm(enumerate(loader), total=9):\n    if i <= done: continue\n", 2),
        ("for b in loader:\n    seen += 1\n    if seen <= done:\n        continue\n", 3),
        ("for b in itertools.islice(loader, start, None):\n    step(b)\n", 1),
        ("for i, b in enumerate(islice(loader, start, None)):\n    step(b)\n", 1),
        ("for i, b in enumerate(loader):\n    if (i + 1) % 4 != 0:\n        continue\n", None),
        ("for i, b in enumerate(loader):\n    if loss < best:\n        continue\n", None),
        ("for i, b in enumerate(loader):\n    if i < 3:\n        log(i)\n", None),
        ("for b in itertools.islice(loader, 100):\n    step(b)\n", None),
        ("for b in itertools.islice(loader, 0, 100):\n    step(b)\n", None),
        ("for i, b in enumerate(lines):\n    if i < 1:\n        continue\n", None),
    ],
)
def test_a_loop_that_skips_batches_itself_is_told_however_it_is_written(loop: str, line: int | None) -> None:
    script = "from ray.train.torch import prepare_data_loader\nloader = prepare_data_loader(data)\n"
    said = [note.line - 2 for note in migrate(script + loop).notes if "resume=False" in note.text]
    assert said == ([line] if line else [])


def test_a_difference_that_the_script_cannot_meet_is_not_told() -> None:
    """One note that matters is read, ten that do not are not."""
    plain = "from ray.train import Checkpoint, FailureConfig, ScalingConfig, report\nfrom ray.train.torch import TorchTrainer\n"
    plain += "import ray\nray.shutdown()\nTorchTrainer(f, scaling_config=ScalingConfig(num_workers=2))\n"
    assert migrate(plain).notes == []
    used = plain + "print(result.filesystem)\nScalingConfig(resources_per_worker={'GPU': 0.5})\n"
    assert {note.text.split(":")[0] for note in migrate(used).notes} == {
        "ray.train.Checkpoint",
        "ray.train.ScalingConfig",
    }


def test_the_command_shows_writes_and_says_what_is_in_the_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_bytes(b"# -*- coding: latin-1 -*-\nname = '\xe9'\nimport ray.train\nray.train.report({})\n")
    script.chmod(0o755)
    assert main(["migrate", "--diff", str(script)]) == 0
    out = capsys.readouterr().out
    assert "-import ray.train\n+from trainjob.compat import ray\n" in out and "1 import to rewrite" in out
    assert b"import ray.train" in script.read_bytes()
    assert main(["migrate", "--write", str(script)]) == 0
    assert script.read_bytes().startswith(
        b"# -*- coding: latin-1 -*-\nname = '\xe9'\nfrom trainjob.compat import ray\n"
    )
    assert script.stat().st_mode & 0o777 == 0o755 and [one.name for one in tmp_path.iterdir()] == ["train.py"]
    script.write_text("from ray.train import DataConfig\n")
    assert main(["migrate", str(script)]) == 1
    assert f"{script}:1: does not run: ray.train.DataConfig has no counterpart" in capsys.readouterr().out
    script.write_text("import (\n")
    assert main(["migrate", str(script)]) == 1
    assert f"{script}, line 1 is not Python" in capsys.readouterr().err
    script.write_text("print()\n")
    assert main(["migrate", str(script)]) == 0
    assert "it imports nothing of Ray" in capsys.readouterr().out


PYTORCH_JOB = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: digits, namespace: team, uid: gone, labels: {a: b}}
spec:
  nprocPerNode: "2"
  runPolicy: {cleanPodPolicy: None, backoffLimit: 5, ttlSecondsAfterFinished: 60, schedulingPolicy: {minAvailable: 3}}
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      restartPolicy: OnFailure
      template: {spec: {containers: [{name: pytorch, image: "a:1", command: [python, train.py], args: [--master]}]}}
    Worker:
      replicas: 2
      restartPolicy: OnFailure
      template:
        spec:
          containers: [{name: pytorch, image: "a:1", command: [python, train.py], resources: {limits: {nvidia.com/gpu: 2}}}]
---
apiVersion: v1
kind: ConfigMap
"""


def test_a_pytorch_job_becomes_a_valid_train_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(PYTORCH_JOB)
    assert main(["migrate", str(path)]) == 0
    out = capsys.readouterr().out
    job = parse_trainjob(yaml.safe_load(out))
    spec = job.spec
    assert (job.metadata.name, job.metadata.namespace, spec.workers, spec.processes_per_worker) == (
        "digits",
        "team",
        3,
        2,
    )
    assert (spec.failure_policy.max_failures, spec.ttl_seconds_after_finished, spec.pod_cleanup) == (5, 60, "None")
    (container,) = spec.template["spec"]["containers"]
    assert container["name"] == "trainer" and container["resources"] == {"limits": {"nvidia.com/gpu": 2}}
    assert "uid" not in out and "1 object of other kinds" in out
    assert "differs in spec.containers[0].args, spec.containers[0].resources" in out
    assert "schedulingPolicy: a start waits" in out and "give spec.checkpoint.storage" in out


@pytest.mark.parametrize(
    ("policy", "sizes", "said"),
    [
        (
            "minReplicas: 1, maxReplicas: 5, maxRestarts: 7",
            (3, 1, 5),
            "elasticPolicy: 1 to 5 workers, 3 of them wished",
        ),
        (
            "minReplicas: 4, maxReplicas: 8",
            (4, 4, 8),
            "elasticPolicy: 4 to 8 workers, 4 of them wished (3 in the file)",
        ),
        ("maxReplicas: 2", (2, 1, 2), "elasticPolicy: 1 to 2 workers, 2 of them wished (3 in the file)"),
        ("minReplicas: 2", (3, 2, 3), "elasticPolicy: 2 to 3 workers, 3 of them wished"),
        ("minReplicas: 1, rdzvBackend: c10d, metrics: []", (3, 1, 3), "elasticPolicy.metrics has no counterpart"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.startswith(("min", "max")) else "",
)
def test_an_elastic_pytorch_job_stays_elastic(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], policy: str, sizes: tuple[int, int, int], said: str
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        PYTORCH_JOB.replace("backoffLimit: 5, ", "").replace("spec:", f"spec:\n  elasticPolicy: {{{policy}}}", 1)
    )
    assert main(["migrate", str(path)]) == 0
    out = capsys.readouterr().out
    spec = parse_trainjob(yaml.safe_load(out)).spec
    assert spec.elastic is not None
    assert (spec.workers, spec.elastic.min_workers, spec.elastic.max_workers) == sizes
    assert f"# look at: {said}" in out and "fixed number" not in out and "rdzvBackend" not in out
    assert spec.failure_policy.max_failures == (7 if "maxRestarts" in policy else 3)


def test_an_elastic_policy_without_sizes_changes_no_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(PYTORCH_JOB.replace("spec:", "spec:\n  elasticPolicy: {rdzvBackend: c10d}", 1))
    assert main(["migrate", str(path)]) == 0
    assert parse_trainjob(yaml.safe_load(capsys.readouterr().out)).spec.elastic is None


def test_a_train_job_of_kubeflow_becomes_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.yml"
    path.write_text(
        textwrap.dedent(
            """
            apiVersion: trainer.kubeflow.org/v1alpha1
            kind: TrainJob
            metadata: {name: digits}
            spec:
              runtimeRef: {name: torch-distributed}
              suspend: true
              trainer: {numNodes: 4, numProcPerNode: auto, image: "a:1", command: [torchrun, train.py]}
            """
        )
    )
    assert main(["migrate", str(path)]) == 0
    out = capsys.readouterr().out
    job = parse_trainjob(yaml.safe_load(out))
    assert (job.spec.workers, job.spec.processes_per_worker, job.spec.suspend) == (4, "auto", True)
    assert "runtimeRef torch-distributed" in out


def test_a_manifest_that_cannot_become_one_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("kind: Deployment\n")
    assert main(["migrate", str(path)]) == 2
    assert "holds no job of Kubeflow (found: Deployment)" in capsys.readouterr().err
    path.write_text("apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: x}\nspec: {}\n")
    assert main(["migrate", str(path)]) == 1
    assert "is not valid" in capsys.readouterr().err


def became(path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> tuple[TrainJob, str]:
    path.write_text(textwrap.dedent(text))
    assert main(["migrate", str(path)]) == 0
    out = capsys.readouterr().out
    return parse_trainjob(yaml.safe_load(out)), out


def refused(path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> str:
    path.write_text(textwrap.dedent(text))
    assert main(["migrate", str(path)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


TF_JOB = """
apiVersion: kubeflow.org/v1
kind: TFJob
metadata: {name: mnist}
spec:
  runPolicy: {backoffLimit: 2, activeDeadlineSeconds: 900}
  tfReplicaSpecs:
    Chief:
      replicas: 1
      template: {spec: {containers: [{name: tensorflow, image: "a:1", command: [python, train.py]}]}}
    Worker:
      replicas: 3
      restartPolicy: OnFailure
      template: {spec: {containers: [{name: side, image: "b:1"}, {name: tensorflow, image: "a:1", command: [python, train.py]}]}}
"""


def test_a_tf_job_becomes_ours_without_parameter_servers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job, out = became(tmp_path / "job.yaml", TF_JOB, capsys)
    assert (job.spec.workers, job.spec.failure_policy.max_failures, job.spec.active_deadline_seconds) == (4, 2, 900)
    assert [one["name"] for one in job.spec.template["spec"]["containers"]] == ["side", "trainer"]
    assert "# changed: spec.tfReplicaSpecs.Worker.replicas 3 -> spec.workers" in out
    assert "# look at: TF_CONFIG" in out
    said = refused(tmp_path / "job.yaml", TF_JOB.replace("Chief:", "PS:"), capsys)
    assert "TFJob mnist cannot become a TrainJob: parameter servers (tfReplicaSpecs.PS) have no counterpart" in said


MPI_JOB = """
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata: {name: pi}
spec:
  slotsPerWorker: 2
  mpiReplicaSpecs:
    Launcher:
      template: {spec: {containers: [{name: launcher, image: "a:1", command: [mpirun, -np, "4", -x, A=b, python3, train.py, --lr, "1"]}]}}
    Worker:
      replicas: 2
      template: {spec: {containers: [{name: worker, image: "a:1", command: [/usr/sbin/sshd], args: [-De], resources: {limits: {memory: 1Gi}}}]}}
"""


def test_mpirun_is_the_command_and_the_job_decides_how_many_ranks_it_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, out = became(tmp_path / "job.yaml", MPI_JOB, capsys)
    (container,) = job.spec.template["spec"]["containers"]
    assert (job.spec.workers, job.spec.processes_per_worker) == (2, 2)
    assert container["command"] == ["mpirun", "-x", "A=b", "python3", "train.py", "--lr", "1"]
    assert "args" not in container
    assert container["name"] == "trainer" and container["resources"] == {"limits": {"memory": "1Gi"}}
    assert "Launcher -> left out; `mpirun -x A=b python3 train.py --lr 1` runs on the first worker" in out
    assert "# changed: mpirun's -np 4 -> left out; it starts processesPerWorker ranks on each worker" in out
    assert "# look at: Open MPI 4 in the image; no ssh server" in out


@pytest.mark.parametrize(
    ("launcher", "command"),
    [
        ("[sh, -c, 'mpirun -np 4 python train.py']", ["mpirun", "python", "train.py"]),
        (
            "[/usr/bin/mpirun, --allow-run-as-root, -np, '4', --mca, btl, ^vader, -N, '2', -bind-to, none, ./pi, -n, '3']",
            ["/usr/bin/mpirun", "--mca", "btl", "^vader", "-bind-to", "none", "./pi", "-n", "3"],
        ),
        ("[sh, -c, 'cd /code && mpirun python train.py']", None),
        ("[horovodrun, -np, '4', python, train.py]", None),
        (
            "[bash, -c, \"exec mpirun -np 4 python train.py --glob '*.txt'\"]",
            ["mpirun", "python", "train.py", "--glob", "*.txt"],
        ),
        ('[bash, -lc, "mpirun \\\\\\n -np 4 python train.py\\n"]', ["mpirun", "python", "train.py"]),
        ("[mpirun, --cpu-set, '0,1', -np, '2', --rankfile, r, ./pi]", ["mpirun", "--cpu-set", "0,1", "./pi"]),
        (
            "[mpirun, -x, 'A=b c', -x, PATH, --, ./pi, a=b]",
            ["mpirun", "-x", "A=b c", "-x", "PATH", "--", "./pi", "a=b"],
        ),
        ("[echo, 'mpirun -np 2 ./pi']", None),
        ("[bash, -c, 'cd /code', 'mpirun -np 2 ./pi']", None),
        ("[bash, -c, 'mpirun -np 2 python train.py *.txt']", None),
        ("[bash, -c, 'mpirun -np 2 python train.py # two']", None),
        ("[bash, -c, 'mpirun -np 2 python train.py ~/data']", None),
        ("[bash, -c, 'mpirun -np 2 -x \"A=$B\" ./pi']", None),
        ('[bash, -c, "mpirun -np 2 ./pi \'a"]', None),
    ],
    ids=[
        *("a shell line", "its own options stay", "a longer one", "horovodrun"),
        *("exec, and a quoted glob", "lines that go on", "options with words behind them", "words that look alike"),
        *(
            "another program",
            "another line of the shell",
            "a glob",
            "a comment",
            "a home",
            "a variable",
            "half a quote",
        ),
    ],
)
def test_an_mpi_job_without_a_plain_mpirun_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], launcher: str, command: list[str] | None
) -> None:
    text = re.sub(r"\[mpirun.*\"1\"\]", lambda found: launcher, MPI_JOB)
    if command is None:
        assert "which is no plain `mpirun ...`" in refused(tmp_path / "job.yaml", text, capsys)
    else:
        job, _ = became(tmp_path / "job.yaml", text, capsys)
        assert job.spec.template["spec"]["containers"][0]["command"] == command


@pytest.mark.parametrize(
    ("launcher", "words"),
    [
        ("[mpirun, -n, '1', ./a, ':', -n, '3', ./b]", "several programs (`:` between them)"),
        ("[mpirun, --np=4, ./pi]", "--np=4, which Open MPI 4 does not know"),
        ("[mpirun, -np, '4']", "an mpirun that names no program"),
        ("[mpirun, --app, file]", "an mpirun with --app, which names no program"),
    ],
)
def test_an_mpirun_that_a_job_cannot_stand_for_is_refused_with_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], launcher: str, words: str
) -> None:
    text = re.sub(r"\[mpirun.*\"1\"\]", lambda found: launcher, MPI_JOB)
    assert words in refused(tmp_path / "job.yaml", text, capsys)


def test_what_the_launcher_had_in_its_environment_the_workers_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = MPI_JOB.replace(
        'image: "a:1", command: [mpirun', 'image: "a:1", env: [{name: A, value: b}], command: [mpirun'
    )
    job, out = became(tmp_path / "job.yaml", text, capsys)
    assert job.spec.template["spec"]["containers"][0]["env"] == [{"name": "A", "value": "b"}]
    assert "# changed: the launcher's variables -> the workers'" in out


def test_an_mpi_job_of_another_mpi_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = MPI_JOB.replace("  slotsPerWorker: 2", "  slotsPerWorker: 2\n  mpiImplementation: Intel")
    assert "its mpiImplementation is Intel, and here mpirun is Open MPI's" in refused(
        tmp_path / "job.yaml", text, capsys
    )


JOB_SET = """
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: pytorch, labels: {kueue.x-k8s.io/queue-name: team}}
spec:
  suspend: true
  failurePolicy: {maxRestarts: 4}
  network: {enableDNSHostnames: true}
  replicatedJobs:
  - name: workers
    replicas: 2
    template:
      spec:
        parallelism: 3
        completions: 3
        backoffLimit: 0
        template:
          spec:
            restartPolicy: Never
            containers:
            - name: pytorch
              image: "a:1"
              env: [{name: MASTER_ADDR, value: "pytorch-workers-0-0.pytorch"}, {name: MASTER_PORT, value: "3389"}, {name: MODE, value: fast}]
              command: [bash, -xc, "torchrun --node_rank=$JOB_COMPLETION_INDEX train.py"]
"""


def test_a_job_set_of_one_group_becomes_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job, out = became(tmp_path / "job.yaml", JOB_SET, capsys)
    assert (job.spec.workers, job.spec.suspend, job.spec.failure_policy.max_failures) == (6, True, 4)
    (container,) = job.spec.template["spec"]["containers"]
    assert container["name"] == "trainer" and container["env"] == [{"name": "MODE", "value": "fast"}]
    assert "restartPolicy" not in job.spec.template["spec"]
    assert "# changed: spec.replicatedJobs[workers]: 2 replicas with parallelism 3 -> spec.workers" in out
    assert "# changed: the container's variable MASTER_ADDR -> left out" in out
    assert "NODE_RANK is the worker's number here" in out
    assert "spec.network has no counterpart" in out
    two = JOB_SET + "  - {name: driver, template: {spec: {template: {spec: {containers: []}}}}}\n"
    said = refused(tmp_path / "job.yaml", two, capsys)
    assert "it has 2 groups of pods (workers, driver), and a TrainJob has one" in said

"""When ranks are forks of a warm parent, and what it imports: the rules alone."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from trainjob.agent.processes import rank_command
from trainjob.agent.processes.rank_command import AttemptPlace, RankPlace
from trainjob.agent.warm import choice
from trainjob.agent.warm.parent import command
from trainjob.agent.warm.script import Script

PLAIN = ["python", "train.py"]


@pytest.mark.parametrize(
    ("wish", "words", "untried", "why"),
    [
        ("auto", PLAIN, False, None),
        ("auto", PLAIN, True, "accelerators other than NVIDIA"),
        ("Always", PLAIN, True, None),
        ("Never", PLAIN, False, "is Never"),
        ("Always", ["torchrun", "train.py"], False, "a launcher"),
        ("Always", ["sh", "-c", "python train.py"], False, "a launcher"),
    ],
)
def test_why_not(wish: str, words: list[str], untried: bool, why: str | None) -> None:
    found = choice.why_not(wish, words, choice.Place(untried, 1 << 40))
    assert found is None if why is None else why in (found or "")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("sys.path.insert(0, 'src')", "in front of sys.path"),
        ("sys.path[0:0] = ['src']", "in front of sys.path"),
        ("sys.path = ['src', *sys.path]", "in front of sys.path"),
        ("sys.path.reverse()", "in front of sys.path"),
        ("from sys import path; path.insert(0, 'src')", "in front of sys.path"),
        ("site.addsitedir('vendored')", "in front of sys.path"),
        ("import comet_ml", "must come before torch"),
        ("from gevent import monkey; monkey.patch_all()", "must come before torch"),
        ("import geventually", None),
        ("from jaxtyping import install_import_hook", "as they are imported"),
        ("os.sched_setaffinity(0, {0})", "chooses its processors"),
        ("psutil.Process().cpu_affinity([0])", "chooses its processors"),
        ("sys.path.append('src')", None),
        ("first = sys.path[0]", None),
        ("if sys.path == []: pass", None),
        ("# no store of TCP", None),
        ("sys.modules['triton'] = None", "changes sys.modules"),
        ("sys.meta_path.insert(0, Finder())", "how modules are found"),
        ("is_there = sys.modules['torch'] is not None", None),
    ],
)
def test_what_a_script_does_before_a_fork_could_be_the_same_is_a_doubt(line: str, why: str | None) -> None:
    texts = [b"import helper\n", f"import sys\n{line}\n".encode()]
    found = choice.doubt("auto", texts)
    assert found is None if why is None else why in (found or "")
    assert choice.doubt("Always", texts) is None


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("store = dist.TCPStore('localhost', 29500, 2, True)", "names TCPStore"),
        ("from torch.distributed import TCPStore as Store", "names TCPStore"),
        ("# no store of TCP", None),
        ("jax.distributed.initialize()", "names jax.distributed"),
        ("from jax import numpy, distributed", "names jax.distributed"),
        ("import torch.distributed, jax", None),
        ("HTTPServer(('', int(os.environ['MASTER_PORT'])), Handler)", "reads MASTER_PORT"),
        ("os.environ['MASTER_PORT'] = '12355'", None),
        ("os.environ.setdefault('MASTER_PORT', '12355')", None),
        ("os.environ['MASTER_PORT'] = port or os.environ['MASTER_PORT']", "reads MASTER_PORT"),
        ("os.environ['MASTER_PORT'] == '12355'", "reads MASTER_PORT"),
        ("os.execv(sys.executable, [sys.executable, *sys.argv])", "becomes another program"),
        ("os.execlpe('sh', 'sh', env)", "becomes another program"),
        ("exec(open('settings.py').read())", None),
        ("sys.exit(subprocess.run([sys.executable, 'train.py']).returncode)", "starts other programs"),
        ("from subprocess import check_call", "starts other programs"),
        ("process = await asyncio.create_subprocess_exec('python', 'train.py')", "starts other programs"),
        ("psutil.Popen(['python', 'train.py'])", "starts other programs"),
        ("os.system('python train.py')", "starts other programs"),
        ("os.posix_spawn('/bin/sh', ['sh'], os.environ)", "starts other programs"),
        ("os.spawnvpe(os.P_WAIT, 'python', ['python', 'train.py'], env)", "starts processes itself"),
        ("torch.multiprocessing.spawn(main, nprocs=1)", "starts processes itself"),
        ("mp.spawn (main)", "starts processes itself"),
        ("context.Process(target=main).start()", "starts processes itself"),
        ("class Trainer(multiprocessing.Process): ...", "starts processes itself"),
        ("if os.fork() == 0: main()", None),
        ("memory = psutil.Process().memory_info()", None),
        ("loader = DataLoader(data, num_workers=4, multiprocessing_context='spawn')", None),
        ("torch.multiprocessing.set_start_method('spawn')", None),
        ("preprocess(batch); Preprocess(batch); subprocesses = 0; os.system_name = 1", None),
    ],
)
def test_a_script_that_may_serve_on_the_ranks_port_has_no_store_there(line: str, why: str | None) -> None:
    texts = [b"import helper\n", f"import sys\n{line}\n".encode()]
    found = choice.serves(texts)
    assert found is None if why is None else why in (found or "")
    assert choice.doubt("auto", [b"import torch.distributed as dist\n"]) is None


EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*/train*.py")), ids=lambda script: script.parent.name)
def test_the_examples_find_each_other_at_a_store_beside_them(script: Path) -> None:
    texts = Script(["python", script.name], str(script.parent)).texts()
    assert texts and choice.serves(texts) is None


@pytest.mark.parametrize(
    ("text", "modules"),
    [
        ("import torch\nprint(torch.load('model.pt'))\n", choice.TORCH),
        ("import torch\nadam = torch.optim.Adam([])\n", choice.AUTO),
        ("from trainjob.torch import prepare_model\n", choice.AUTO),
        ("from transformers import Trainer\n", choice.AUTO),
        ("import argparse, torch\nfrom torch import optim\n", choice.AUTO),
        ("def train():\n    import torch.optim\n", choice.AUTO),
        ("print('as torch.save() does')  # or import torch\n", ()),
        ("import re, torch\nword = re.compile('x')\n", choice.TORCH),
        ("import torch\nmodel = torch.compile(model)\n", choice.AUTO),
        (None, ()),
    ],
)
def test_what_is_imported_ahead(text: str | None, modules: tuple[str, ...]) -> None:
    """`None`: nobody can read it."""
    texts = [] if text is None else [b"import helper\n", text.encode()]
    assert choice.plan(None, texts) == (modules, True)
    assert choice.plan(["pandas"], texts) == (("pandas",), False)


def test_where_memory_is_short_nothing_is_kept_ready() -> None:
    short, enough = (choice.Place(False, room) for room in (choice.ROOM - 1, choice.ROOM))
    assert "511 MiB of memory left, less than 512" in (choice.why_not("auto", PLAIN, short) or "")
    assert choice.why_not("auto", PLAIN, enough) is None is choice.why_not("Always", PLAIN, short)
    assert choice.why_not_learn(choice.ROOM_TO_LEARN) is None is choice.why_not_learn(None)
    assert "less than 1536" in (choice.why_not_learn(choice.ROOM_TO_LEARN - 1) or "")


def test_a_ranks_environment_is_its_parents_but_for_its_place() -> None:
    words = [sys.executable, "train.py"]
    place, shared = RankPlace(1, 1, 4, 2, 0, 2, 2), AttemptPlace(3, 1, "/s", "host", 1, "/x.sock", "/x", "/tmp/x", "_")
    rank = rank_command.environment(os.environ, words, place, shared)
    parent = rank_command.environment_of_all(os.environ, words, 2)
    assert choice.differing(rank, parent) is None
    assert choice.differing({**rank, "OMP_NUM_THREADS": "9"}, parent) == "OMP_NUM_THREADS"
    assert choice.differing(rank, {**parent, "HF_HOME": "/models"}) == "HF_HOME"
    assert choice.differing(rank, rank_command.environment_of_all({**os.environ, "PYTHONHASHSEED": "1"}, words, 2))


def test_the_parents_command_line_has_room_for_a_ranks() -> None:
    argv = ["/usr/bin/python", "-O", "-m", "trainjob.session.rank", "--", "training_script.py", "--lr", "0.1"]
    found = command(argv, 7)
    assert found[:6] == ["/usr/bin/python", "-O", "-m", "trainjob.session.rank", "--warm", "7"]
    assert len("\0".join(found)) == len("\0".join(argv))

"""A checkpoint of files with odd names and odd kinds: line feeds, no UTF-8, deep, sparse, linked, hundreds of small
ones.
"""

import json
import os
import shutil
import tempfile

from tiny import STEPS, Net

import trainjob

NAMES = (
    b"line\nfeed",
    b"\xff\xfe no text",
    "тензор 权重 \U0001f9ea".encode(),
    b"-rf",
    b'it\'s "quoted" $HOME `id`',
    b"%2e%2e",
    b"a" * 200,
    b"/".join([b"deep"] * 40) + b"/er",
    b" spaces ",
    b"back\\slash",
    b".hidden/.more",
)


def save(folder, state):
    for name in NAMES:
        path = os.path.join(os.fsencode(folder), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(name)
    with open(os.path.join(folder, "net.json"), "w") as file:
        json.dump(state, file)
    os.chmod(os.path.join(folder, "net.json"), 0o4755)
    os.symlink("net.json", os.path.join(folder, "latest"))
    os.link(os.path.join(folder, "net.json"), os.path.join(folder, "again"))
    with open(os.path.join(folder, "sparse"), "wb") as file:
        file.truncate(16 << 20)
        file.seek(8 << 20)
        file.write(b"in the middle")
    os.makedirs(os.path.join(folder, "many"))
    for number in range(300):
        with open(os.path.join(folder, "many", str(number)), "w") as file:
            file.write(str(number))


def load(folder):
    for name in NAMES:
        with open(os.path.join(os.fsencode(folder), name), "rb") as file:
            assert file.read() == name, name
    with open(os.path.join(folder, "sparse"), "rb") as file:
        assert os.fstat(file.fileno()).st_size == 16 << 20
        file.seek(8 << 20)
        assert file.read(13) == b"in the middle"
    assert len(os.listdir(os.path.join(folder, "many"))) == 300
    with open(os.path.join(folder, "latest")) as latest, open(os.path.join(folder, "again")) as again:
        state = json.load(latest)
        assert json.load(again) == state
    return state


net = Net()
rank = trainjob.get_context().get_world_rank()
if checkpoint := trainjob.get_checkpoint():
    with checkpoint.as_directory() as folder:
        net.load(load(folder))
for step in range(net.done, STEPS):
    loss = net.train_step(step)
    checkpoint = None
    if rank == 0:
        folder = tempfile.mkdtemp()
        save(folder, net.state())
        checkpoint = trainjob.Checkpoint.from_directory(folder)
    trainjob.report({"loss": loss}, checkpoint=checkpoint, step=step + 1)
    if checkpoint is not None:
        shutil.rmtree(folder)
net.finish()

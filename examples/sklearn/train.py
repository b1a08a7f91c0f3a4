"""scikit-learn on several ranks: each measures its part of a grid of settings, rank 0 fits the best one. Without torch.

tj run examples/sklearn/train.py --workers 2 --name grid
"""

import json
import pathlib
import pickle
import sys
import tempfile

from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_score
from sklearn.svm import SVC

import trainjob


def search(rows):
    data, labels = (part[:rows] for part in load_digits(return_X_y=True))
    grid = [f"{c} {gamma}" for c in (0.1, 1, 10) for gamma in (0.001, 0.01, 0.1, 1)]
    context = trainjob.get_context()
    scores = measured()
    left = [setting for setting in grid if setting not in scores]
    for at in range(0, len(left), context.world_size):
        setting = left[min(at + context.rank, len(left) - 1)]  # all ranks report as often
        scores[setting] = cross_val_score(made(setting), data, labels, cv=3).mean().item()
        done = len(grid) - len(left) + min(at + context.world_size, len(left))
        report({"accuracy": scores[setting]}, f"scores-{context.rank}.json", json.dumps(scores).encode(), done)
    scores = measured()  # by now those of all ranks
    best = max(grid, key=scores.__getitem__)
    name, content = f"scores-{context.rank}.json", json.dumps(scores).encode()
    if context.rank == 0:
        name, content = "model.pkl", pickle.dumps(made(best).fit(data, labels))
    report({"accuracy": scores[best]}, name, content, len(grid) + 1)


def made(setting):
    c, gamma = map(float, setting.split())
    return SVC(C=c, gamma=gamma)


def measured():
    """The scores of all ranks in the newest checkpoint."""
    found = {}
    if checkpoint := trainjob.get_checkpoint():
        with checkpoint.as_directory() as folder:
            for path in pathlib.Path(folder).glob("scores-*"):
                found.update(json.loads(path.read_text()))
    return found


def report(metrics, name, content, step):
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, name).write_bytes(content)
        trainjob.report(metrics, checkpoint=trainjob.Checkpoint.from_directory(folder), step=step)


if __name__ == "__main__":
    search(rows=int(sys.argv[1]) if sys.argv[1:] else 1797)

"""Evaluation as a job of its own: the checkpoints of the images example, each rank its part of the pictures.

    tj run examples/evaluate/evaluate.py --workers 2 -- ~/trainjob_results/default/images
    tj run examples/evaluate/evaluate.py -- s3://my-bucket/runs/default/images --best

Reports one row for each checkpoint, so that `tj history` and `Result` have the figures. Nothing of the training job has
to be alive; its files are only read.
"""

import argparse
import os
import sys

import torch
from torch.utils.data import DataLoader

import trainjob
from trainjob import Result

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "images"))
from train import Stripes, accuracy_of, network


def evaluate(config):
    """Every rank runs this. The ranks' counts are added up in accuracy_of()."""
    trainjob.init_process_group()  # prepare_model() is not called here: no gradients, no DDP
    pictures = Stripes(config["pictures"], seed=3, augment=False)  # neither trained on nor chosen by
    loader = trainjob.prepare_data_loader(DataLoader(pictures, 50), resume=False)
    found = [checkpoint for checkpoint, _ in Result.from_path(config["job"]).best_checkpoints]  # the best one is last
    for number, checkpoint in enumerate(found[-1:] if config["best"] else found, start=1):
        with checkpoint.as_directory() as folder:
            saved = torch.load(os.path.join(folder, "model.pt"), map_location="cpu", weights_only=True)
        model = network(saved["model"]["0.first.weight"].shape[0]).to(trainjob.get_device())
        model.load_state_dict(saved["model"])
        trainjob.report({"trained_epochs": saved["epoch"] + 1, "accuracy": accuracy_of(model, loader)}, step=number)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", help="the training job's folder: <storage>/<namespace>/<name>")
    parser.add_argument("--best", action="store_true", help="its best checkpoint alone")
    parser.add_argument("--pictures", type=int, default=1000)
    evaluate(vars(parser.parse_args()))

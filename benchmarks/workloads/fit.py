"""`TorchTrainer(...).fit()` of one DDP step on 2 ranks, under TrainJob or under Ray Train; notes when fit() was called
and when the step was done.

Arguments: `trainjob` or `ray`, and the file to write.
"""

import json
import os
import sys
import time

LIBRARY = sys.argv[1]

if LIBRARY == "ray":
    from ray.train import RunConfig, ScalingConfig, report
    from ray.train.torch import TorchTrainer, prepare_model
else:
    from trainjob import RunConfig, ScalingConfig, TorchTrainer, prepare_model, report


def loop(config):
    import torch

    torch.set_num_threads(1)
    model = prepare_model(torch.nn.Linear(64, 64))
    model(torch.randn(32, 64)).square().mean().backward()
    if torch.distributed.get_rank() == 0:
        with open(config["step"], "w") as file:
            file.write(str(time.time()))
    report({"loss": 0.0})


def main(out):
    config = RunConfig(storage_path=os.path.join(os.path.dirname(out), "storage"))
    step = out + ".step"
    trainer = TorchTrainer(
        loop, train_loop_config={"step": step}, scaling_config=ScalingConfig(num_workers=2), run_config=config
    )
    begun = time.time()
    trainer.fit()
    with open(step) as file:
        first = float(file.read())
    with open(out, "w") as file:
        json.dump({"fit": begun, "first_step": first}, file)


if __name__ == "__main__":
    main(sys.argv[2])

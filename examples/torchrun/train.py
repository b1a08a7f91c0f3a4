"""A script that knows nothing of TrainJob, under torchrun: DDP, and a checkpoint of its own, which it begins with.

tj run -f examples/torchrun/trainjob.yaml --local --storage ./checkpoints
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--save-every", type=int, default=20)
parser.add_argument("--out", default=os.path.join(os.environ.get("TRAINJOB_STORAGE") or ".", "out"))
given = parser.parse_args()

on_gpu = torch.cuda.is_available()
dist.init_process_group("nccl" if on_gpu else "gloo")
rank, device = dist.get_rank(), torch.device("cpu")
if on_gpu:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)

torch.manual_seed(1)
plain = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)).to(device)
model = DistributedDataParallel(plain)
optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2)

os.makedirs(given.out, exist_ok=True)
path, begin = os.path.join(given.out, "ckpt.pt"), 0
if os.path.exists(path):
    state = torch.load(path, map_location=device)
    plain.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    begin = state["step"]

for step in range(begin + 1, given.steps + 1):
    drawn = torch.randn(32, 8, generator=torch.Generator().manual_seed(1000 * step + rank)).to(device)
    loss = torch.nn.functional.mse_loss(model(drawn), drawn.sin().sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % given.save_every == 0 or step == given.steps:
        # Kept until the end: see "terminate called without an active exception" in docs/troubleshooting.md.
        reduction = dist.all_reduce(mean := loss.detach() / dist.get_world_size(), async_op=True)
        reduction.wait()
        if rank == 0:
            state = {"model": plain.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, f"{path}.part")
            os.replace(f"{path}.part", path)  # whole or not at all
            print(f"step {step}: loss {mean.item():.6f}", flush=True)
dist.destroy_process_group()

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(64, 4)
data = TensorDataset(x, x.sum(1, keepdim=True))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
os.makedirs("out", exist_ok=True)
snapshot = torch.load("out/snapshot.pt") if os.path.exists("out/snapshot.pt") else None
if snapshot:
    model.module.load_state_dict(snapshot["model"])
    optimizer.load_state_dict(snapshot["optimizer"])

for epoch in range(snapshot["epochs"] if snapshot else 0, 4):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epochs": epoch + 1}
        torch.save(state, "out/snapshot.pt")
dist.destroy_process_group()

"""The torch recipe in one: DDP, gradient accumulation, an EMA copy, a scheduler, torch.compile, loader workers, torch.save
in place, best model beside the last one.
"""

import copy
import os
import sys
import tempfile

import torch
import torch.distributed as dist
from tiny import Net
from torch.utils.data import DataLoader, TensorDataset

import trainjob

START = sys.argv[1] if len(sys.argv) > 1 else "fork"
EPOCHS, ACCUMULATE = 4, 2


def main():
    trainjob.enable_reproducibility(seed=3)
    notes = Net()
    data = TensorDataset(torch.linspace(-1, 1, 32).reshape(-1, 1), torch.linspace(-2, 2, 32).reshape(-1, 1))
    loader = trainjob.prepare_data_loader(
        DataLoader(data, batch_size=4, shuffle=True, num_workers=1, multiprocessing_context=START)
    )
    model = trainjob.prepare_model(torch.nn.Linear(1, 1))
    forward = torch.compile(model, backend="eager")
    ema = copy.deepcopy(getattr(model, "module", model))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    first = 0
    if checkpoint := trainjob.get_checkpoint():
        with checkpoint.as_directory() as folder:
            saved = torch.load(os.path.join(folder, "last.pt"), weights_only=False)
        model.load_state_dict(saved["model"])
        ema.load_state_dict(saved["ema"])
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
        notes.load(saved["notes"])
        first = saved["epoch"] + 1
    for epoch in range(first, EPOCHS):
        total = 0.0
        for number, (x, y) in enumerate(loader):
            loss = torch.nn.functional.mse_loss(forward(x), y) / ACCUMULATE
            loss.backward()
            total += loss.item()
            if (number + 1) % ACCUMULATE == 0:
                optimizer.step()
                optimizer.zero_grad()
                with torch.no_grad():
                    for slow, fast in zip(ema.parameters(), model.parameters()):
                        slow.lerp_(fast, 0.1)
        scheduler.step()
        mean = torch.tensor(total)
        dist.all_reduce(mean)
        total = mean.item() / dist.get_world_size()
        notes.train_step(epoch)
        notes.weight = total
        with tempfile.TemporaryDirectory() as folder:
            if dist.get_rank() == 0:
                state = {
                    "model": model.state_dict(),
                    "ema": ema.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "scheduler": scheduler.state_dict(),
                    "notes": notes.state(),
                    "epoch": epoch,
                }
                torch.save(state, os.path.join(folder, "last.pt"))
            trainjob.report({"loss": total}, checkpoint=trainjob.Checkpoint.from_directory(folder), step=epoch + 1)
    notes.weight = sum(p.sum().item() for p in ema.parameters())
    notes.finish()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

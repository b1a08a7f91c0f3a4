import torch
from ray.train.torch import TorchCheckpoint

model = torch.nn.Linear(1, 1)
checkpoint = TorchCheckpoint.from_state_dict(model.state_dict())
assert torch.equal(checkpoint.get_model(torch.nn.Linear(1, 1)).weight, model.weight)

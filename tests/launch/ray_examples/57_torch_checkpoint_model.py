import torch
from ray.train.torch import TorchCheckpoint

model = torch.nn.Identity()
checkpoint = TorchCheckpoint.from_model(model)
assert isinstance(checkpoint.get_model(), torch.nn.Identity)

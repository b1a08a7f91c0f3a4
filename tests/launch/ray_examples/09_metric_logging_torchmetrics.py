import torch
import torchmetrics
import ray.train.torch
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer
from torch.utils.data import DataLoader, TensorDataset


def train_func(config):
    model = ray.train.torch.prepare_model(torch.nn.Linear(4, 4))
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    dl = DataLoader(TensorDataset(torch.randn(16, 4), torch.randint(0, 4, (16,))), batch_size=4)
    dl = ray.train.torch.prepare_data_loader(dl)
    mean_valid_loss = torchmetrics.MeanMetric().to(ray.train.torch.get_device())
    for epoch in range(2):
        for X, y in dl:
            loss = criterion(model(X), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mean_valid_loss(loss)
        collected = mean_valid_loss.compute().item()
        mean_valid_loss.reset()
        ray.train.report(metrics={"mean_valid_loss": collected})


result = TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=2)).fit()
assert result.metrics["mean_valid_loss"] > 0

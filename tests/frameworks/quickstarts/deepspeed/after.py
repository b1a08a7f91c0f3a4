import deepspeed
import torch

import trainjob.deepspeed

config = {"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}}}
model = torch.nn.Linear(4, 1)
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
state = trainjob.deepspeed.load_checkpoint(engine)
for step in range(state["step"] if state else 0, 4):
    inputs = torch.randn(8 // torch.distributed.get_world_size(), 4)
    loss = torch.nn.functional.mse_loss(engine(inputs), inputs.sum(1, keepdim=True))
    engine.backward(loss)
    engine.step()
    trainjob.deepspeed.report(engine, {"loss": loss.item()}, step=step + 1)

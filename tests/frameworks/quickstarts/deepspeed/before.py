import deepspeed
import torch

config = {"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}}}
model = torch.nn.Linear(4, 1)
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
_, state = engine.load_checkpoint("out")
for step in range(state["step"] if state else 0, 4):
    inputs = torch.randn(8 // torch.distributed.get_world_size(), 4)
    loss = torch.nn.functional.mse_loss(engine(inputs), inputs.sum(1, keepdim=True))
    engine.backward(loss)
    engine.step()
    engine.save_checkpoint("out", client_state={"step": step + 1})

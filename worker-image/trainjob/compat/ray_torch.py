"""`ray.train.torch.TorchCheckpoint`: a checkpoint with a model in one file, under Ray's names."""

from __future__ import annotations

import os
from typing import Any, Dict

from trainjob.session.checkpoint import Checkpoint
from trainjob.session.errors import CheckpointError


class TorchCheckpoint(Checkpoint):
    """A folder with `model.pt`: a state_dict, or a whole model. Torch is imported when one is written or read."""

    MODEL_FILENAME = "model.pt"

    @classmethod
    def from_state_dict(cls, state_dict: Dict[str, Any], *, preprocessor: Any = None) -> TorchCheckpoint:
        """Save a state_dict into a new temporary folder, which report() may move away."""
        return cls._saved(dict(state_dict), preprocessor)

    @classmethod
    def from_model(cls, model: Any, *, preprocessor: Any = None) -> TorchCheckpoint:
        """Save the whole model, of which reading needs its class."""
        return cls._saved(model, preprocessor)

    @classmethod
    def _saved(cls, what: Any, preprocessor: Any) -> TorchCheckpoint:
        import torch

        if preprocessor is not None:
            raise CheckpointError("TorchCheckpoint(preprocessor=...): there is no Ray Data here; save it as a file.")
        checkpoint = cls.in_new_folder("trainjob-model-")
        torch.save(what, os.path.join(checkpoint.path, cls.MODEL_FILENAME))
        return checkpoint

    def get_model(self, model: Any = None) -> Any:
        """The model that was saved whole; of a state_dict: `model` with it loaded. Unpickles: only for checkpoints of
        your own. Raises CheckpointError without a model to load a state_dict into.
        """
        import torch

        with self.open(self.MODEL_FILENAME) as file:
            found = torch.load(file, map_location="cpu", weights_only=False)
        if not isinstance(found, dict):
            return found
        if model is None:
            raise CheckpointError(
                f"{self!r} holds a state_dict: give the model to load it into, get_model(model), or save a whole one "
                "with from_model()."
            )
        model.load_state_dict(found)
        return model

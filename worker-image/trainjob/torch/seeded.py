"""A seed for each batch that a data loader's worker process loads, under enable_reproducibility().

`samplers` sends it with the indices; `loader` puts the dataset here in the place of the user's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from trainjob.torch import reproducible


class Numbered(NamedTuple):
    """What a data loader's worker process is sent under enable_reproducibility(): the indices and the seed of this
    batch.
    """

    indices: Any
    seed: int


class SeededDataset:
    """In a worker process: seeds the generators for each batch, then asks the user's dataset as torch would."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitem__(self, numbered: Numbered) -> Any:
        reproducible.seed_generators(numbered.seed)
        return self.dataset[numbered.indices]

    def __getitems__(self, numbered: Numbered) -> Any:
        reproducible.seed_generators(numbered.seed)
        if getattr(self.dataset, "__getitems__", None):
            return self.dataset.__getitems__(numbered.indices)
        return [self.dataset[index] for index in numbered.indices]

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)

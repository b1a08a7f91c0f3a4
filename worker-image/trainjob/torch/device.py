"""Which devices are this rank's: the visible GPUs split among the ranks of a worker, else the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, List

from trainjob.torch.place import place

if TYPE_CHECKING:
    import torch


def get_device() -> torch.device:
    """This rank's (first) device.

    ```python
    images = images.to(trainjob.get_device())
    ```
    """
    return get_devices()[0]


def get_devices() -> List[torch.device]:
    """All devices of this rank: an equal share of the visible GPUs, or the CPU where there are none.

    Where each rank sees only GPUs of its own (fewer visible than ranks on this worker), those are shared in turn.

    ```python
    print(trainjob.get_devices())  # [device(type='cpu')], or two of four GPUs where this worker has two ranks
    ```
    """
    import torch

    here = place()
    visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if visible == 0:
        return [torch.device("cpu")]
    share = visible // here.local_world_size
    if share == 0:
        return [torch.device("cuda", here.local_rank % visible)]
    return [torch.device("cuda", index) for index in range(here.local_rank * share, (here.local_rank + 1) * share)]

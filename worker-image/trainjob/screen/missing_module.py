"""What to do about a module that a rank did not find: correct its name, or install it.

A command that installs a name with a slip in it must never be offered: what answers to it may be anybody's package.
"""

from __future__ import annotations

import difflib
import pkgutil
import sys
from collections.abc import Iterable

ALIKE = 0.8
"""Of difflib: `pandsa` and `pandas`, `pytorch` and `torch` are above it, `einops` and what is usual are not."""

_SAME = """
accelerate albumentations bitsandbytes datasets diffusers einops evaluate fsspec gymnasium h5py
huggingface_hub jax joblib keras kornia librosa lightgbm lightning matplotlib mlflow monai nltk numba numpy
omegaconf onnx onnxruntime optuna orjson pandas peft polars pyarrow requests s3fs safetensors scipy seaborn
sentencepiece spacy tensorboard tensorflow tiktoken timm tokenizers torch torchaudio torchdata torchmetrics
torchtext torchvision tqdm transformers trl wandb webdataset xgboost zarr
"""
KNOWN = {
    **{name: name for name in _SAME.split()},
    "cv2": "opencv-python",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "hydra": "hydra-core",
    "pytorch_lightning": "pytorch-lightning",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
    "PIL": "pillow",
    "deepspeed": "deepspeed",
}
"""Modules that training scripts import, and the package that each comes with."""


def advice(name: str, on_a_cluster: bool) -> str:
    """With `{where}` for the place of the import. Of a cluster's image nobody here knows what is in it."""
    package = name.partition(".")[0]
    if on_a_cluster:
        return f"Install {package} in the workers' image, or correct the import ({{where}})"
    like = _meant(package)
    if like == package:
        return f"Correct the import ({{where}}): {package} is installed, but has no module {name} in this version"
    if like is not None:
        return f"Correct the import ({{where}}): did you mean {like}? Nothing called {package} is installed"
    known = _nearest(package, KNOWN)
    install = f"`{sys.executable} -m pip install {KNOWN[known] if known else package}`"
    if known is not None and known != package:
        return f"Correct the import ({{where}}): did you mean {known}? It is not installed either: {install}"
    return f"Install what is missing where the ranks run, or correct the import ({{where}}): {install}"


def _meant(name: str) -> str | None:
    """The importable top-level name that is most like it, upper and lower case alike; None: there is none."""
    return _nearest(name, {each.name for each in pkgutil.iter_modules()} | sys.stdlib_module_names)


def _nearest(name: str, there: Iterable[str]) -> str | None:
    by_folded = {each.casefold(): each for each in sorted(there) if not each.startswith("_")}
    found = difflib.get_close_matches(name.casefold(), by_folded, n=8, cutoff=ALIKE)
    if not found:
        return None

    def alike(each: str) -> tuple[float, bool]:
        # Of two that are equally like it the one that training scripts import.
        return difflib.SequenceMatcher(None, each, name.casefold()).ratio(), by_folded[each] in KNOWN

    return by_folded[max(found, key=alike)]

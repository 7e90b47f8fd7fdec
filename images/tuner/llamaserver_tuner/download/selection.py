"""Which files of a repository vLLM reads.

Many repositories hold their weights several times: as safetensors, as PyTorch's pickles, for other runtimes.
What is left out here no engine can load later, so that in doubt a file is taken.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Final

OF_OTHERS: Final = frozenset({"coreml", "metal", "onnx", "openvino", "original"})
"""Folders at the top in which weights lie once more, for other runtimes or in their makers' own form."""
UNREAD: Final = frozenset({".gguf", ".h5", ".mlmodel", ".msgpack", ".onnx", ".onnx_data", ".ot", ".tflite"})
PICKLES: Final = frozenset({".bin", ".pt", ".pth"})
"""What vLLM reads only where there are no safetensors (its load format `auto`)."""
OF_A_TRAINING: Final = frozenset({"optimizer", "rng_state", "scaler", "scheduler", "training_args"})
"""Pickles that a training leaves beside the weights, or without them."""


def wanted(paths: Iterable[str]) -> list[str]:
    """The files to fetch, in order."""
    found = [PurePosixPath(path) for path in sorted(paths)]
    safe = {path.parent for path in found if path.suffix == ".safetensors"}
    return [str(path) for path in found if _read(path, path.parent in safe)]


def is_weights(path: str) -> bool:
    """Whether this file, of those that are fetched, holds weights."""
    file = PurePosixPath(path)
    return file.suffix == ".safetensors" or (file.suffix in PICKLES and file.stem not in OF_A_TRAINING)


def _read(path: PurePosixPath, has_safetensors: bool) -> bool:
    if len(path.parts) > 1 and path.parts[0] in OF_OTHERS:
        return False
    return path.suffix not in UNREAD and not (has_safetensors and path.suffix in PICKLES)

"""Small pictures as files, and a folder with a processor of images as Qwen's models have it."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

PLACEHOLDER = 90
START, END = 91, 92


def picture(width: int = 56, height: int = 28, seed: int = 0, **save: Any) -> bytes:
    """Returns a file of noise, PNG unless `format` says otherwise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, **{"format": "PNG"} | save)
    return file.getvalue()


def write_processor(folder: Path, placeholder: int = PLACEHOLDER, *, patch: int = 14) -> Path:
    """Writes a processor of images: patches of `patch` × `patch` pixels, 2 × 2 of which are a token."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": patch,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "min_pixels": (2 * patch) ** 2,
        "max_pixels": (2 * patch) ** 2 * 64,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    config = folder / "config.json"
    values = json.loads(config.read_text()) if config.is_file() else {"model_type": "qwen2_5_vl"}
    config.write_text(json.dumps(values | {"image_token_id": placeholder}))
    return folder

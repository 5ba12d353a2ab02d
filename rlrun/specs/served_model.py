"""What the folder that servers start from must have in common with the policy's."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlrun.specs.job import Spec
from rlrun.specs.problems import Finding

_SHARED = ("model_type", "vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size")
_KEY = ("engine", "model")
_OTHERS = (("model", "path"),)


def served_model(spec: Spec) -> Iterator[Finding]:
    """Of the same shape as the policy, quantised as updates are; silent for an id on the hub."""
    if spec.engine.type != "sglang" or spec.engine.model is None:
        return
    served = _config(Path(spec.engine.model))
    if served is None:
        message = f"there is no config.json in {spec.engine.model}"
        yield Finding(_KEY, message, "name a Hugging Face folder", related=_OTHERS)
        return
    policy = _config(Path(spec.model.path))
    for name in _SHARED:
        if policy is not None and served.get(name) != policy.get(name):
            message = f"servers would have {name} {served.get(name)}, and the policy has {policy.get(name)}"
            yield Finding(_KEY, message, "convert the policy's own folder: rlrun convert", related=_OTHERS)
            return
    settings = served.get("quantization_config")
    if settings and (settings.get("quant_method"), settings.get("weight_block_size")) != ("fp8", [128, 128]):
        message = f"servers cannot be updated in this quantisation ({settings.get('quant_method')})"
        yield Finding(_KEY, message, "rlrun convert hf-to-hf SRC DST --quantize fp8-block", related=_OTHERS)


def _config(folder: Path) -> dict[str, Any] | None:
    """A folder's config.json; None where there is none that can be read."""
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) else None

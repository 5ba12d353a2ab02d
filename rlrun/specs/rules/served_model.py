"""Checks that the model folder which servers load (`engine.model`) fits the policy."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlrun.models.config_defaults import EXPERT_COUNTS
from rlrun.models.decoder_config import packed_groups, quantisation
from rlrun.models.json_files import read_json
from rlrun.specs.problems.findings import Finding
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.sections.job import Spec

_SHARED = ("model_type", "vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size")
_KEY = ("engine", "model")
_OTHERS = (("model", "path"),)


def served_model(spec: Spec) -> Iterator[Finding]:
    """The served model has the policy's shape and a quantisation that can be updated.

    An id on the hub is not checked.
    """
    if spec.engine.type != "sglang" or spec.engine.model is None:
        return
    served = _config(Path(spec.engine.model))
    if served is None:
        message = f"there is no config.json in {spec.engine.model}"
        yield Finding(_KEY, message, "give a Hugging Face model folder", related=_OTHERS)
        return
    policy = _config(Path(spec.model.path))
    for name in _SHARED:
        if policy is not None and served.get(name) != policy.get(name):
            message = f"its {name} is {served.get(name)}, and the policy's is {policy.get(name)}"
            yield Finding(
                _KEY,
                message,
                "convert the policy's own folder: rlrun convert hf-to-hf SRC DST",
                related=_OTHERS,
            )
            return
    try:
        settings = quantisation(served)
    except ValueError as error:
        yield Finding(_KEY, str(error), "copy the folder again", related=_OTHERS)
        return
    if settings.get("format") == "pack-quantized":
        yield from _int4(spec, settings, served)
    elif settings and (settings.get("quant_method"), settings.get("weight_block_size")) != (
        "fp8",
        [128, 128],
    ):
        message = f"weights cannot be updated in its quantisation ({settings.get('quant_method')})"
        yield Finding(
            _KEY, message, "convert it: rlrun convert hf-to-hf SRC DST --quantize fp8-block", related=_OTHERS
        )


def _int4(spec: Spec, settings: Mapping[str, Any], served: dict[str, Any]) -> Iterator[Finding]:
    """Servers with matrices in four bits get updates from a trainer that rounds them in the same groups."""
    sizes = packed_groups(settings)
    related: tuple[KeyPath, ...] = (("trainer", "precision"), ("trainer", "int4_group"))
    if not any(served.get(name) for name in EXPERT_COUNTS):
        message = "SGLang can only update the matrices of routed experts in INT4, and the model has none"
        yield Finding(_KEY, message, "give a folder in bfloat16 or FP8", related=_OTHERS)
    elif (group := spec.trainer.rounded_group) is None:
        message = "its weights are in INT4, and the trainer does not round them"
        yield Finding(_KEY, message, 'set trainer.precision = "int4_qat"', related=related)
    elif any(size != group for size in sizes or [None]):
        message = f"its groups have {', '.join(map(str, sizes))} numbers, and trainer.int4_group is {group}"
        yield Finding(_KEY, message, "set trainer.int4_group to the folder's group", related=related)


def _config(folder: Path) -> dict[str, Any] | None:
    """A folder's config.json; None if there is none that can be read."""
    try:
        config = read_json(folder / "config.json")
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) else None

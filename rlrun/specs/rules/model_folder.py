"""What a local model's config.json says about a spec, before anything heavy is loaded."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlrun.models.attention_config import attention_interval
from rlrun.models.config_defaults import EXPERT_COUNTS, with_family_defaults
from rlrun.models.config_json import architecture
from rlrun.models.families.table import family_of
from rlrun.models.json_files import read_json
from rlrun.specs.derived.conflicts.features import SHARED_PREFIXES
from rlrun.specs.derived.conflicts.reading import reason_against_model
from rlrun.specs.derived.engine_groups import policy_groups
from rlrun.specs.derived.engine_sections import POLICY
from rlrun.specs.derived.lengths import longest_response, longest_sample
from rlrun.specs.derived.pipeline_stages import stage_without_choice
from rlrun.specs.derived.server_size import attention_parts_of
from rlrun.specs.problems.findings import Finding
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.rules.family_rules import family_findings
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.trainer import ParallelSpec

LENGTH_KEYS: tuple[KeyPath, ...] = (
    ("rollout", "max_response_tokens"),
    ("rollout", "max_prompt_tokens"),
    ("eval", "max_response_tokens"),
)

MODEL: KeyPath = ("model", "path")

MAX_RANKS = 64
"""Larger degrees of tensor parallelism are not proposed."""


def model_findings(spec: Spec) -> Iterator[Finding]:
    """Checks lengths and parallel layouts against the models; an id on the hub is not checked."""
    yield from _teacher(spec)
    file = Path(spec.model.path) / "config.json"
    if not file.is_absolute() or not file.is_file():
        return
    try:
        config = read_json(file)
    except (OSError, ValueError) as error:
        yield Finding(MODEL, str(error), "copy the model's files again")
        return
    if not isinstance(config, dict):
        yield Finding(MODEL, f"{file} holds no table of settings", "copy the model's files again")
        return
    yield from family_findings(spec, config)
    config = with_family_defaults(config)
    yield from _quantised(spec, config)
    yield from _length(spec, config)
    yield from _heads(spec, config)
    yield from _server_heads(spec, config)
    yield from _attention_interval(spec, config)
    yield from _layers(spec, config)
    yield from _stage_layers(spec, config)
    yield from _shared_choices(spec, config)
    yield from _experts(spec, config)


def _quantised(spec: Spec, config: dict[str, Any]) -> Iterator[Finding]:
    settings = config.get("quantization_config")
    if settings and not spec.model.random_init:
        method = settings.get("quant_method") if isinstance(settings, dict) else settings
        cure = "convert it to bfloat16 first: rlrun convert hf-to-hf SRC DST --quantize none"
        yield Finding(MODEL, f"the model is quantised ({method}) and cannot be trained", cure)


def _length(spec: Spec, config: dict[str, Any]) -> Iterator[Finding]:
    holds = config.get("max_position_embeddings")
    if not isinstance(holds, int) or (sample := longest_sample(spec, holds)) <= holds:
        return
    related = (*LENGTH_KEYS, MODEL)
    prompt, response = spec.rollout.given("max_prompt_tokens"), longest_response(spec)
    if prompt is None:
        message = (
            f"max_response_tokens {response} leaves no room for a prompt: the model's limit is {holds} tokens"
        )
        yield Finding(LENGTH_KEYS[0], message, f"set it below {holds}", related=related)
        return
    message = (
        f"max_prompt_tokens {prompt} + max_response_tokens {response} = {sample} tokens, and the model's "
        f"limit is {holds}"
    )
    yield Finding(LENGTH_KEYS[0], message, f"lower one of them: at most {holds} together", related=related)


def _teacher(spec: Spec) -> Iterator[Finding]:
    """Checks the teacher's family and layout; a broken config.json is reported when the model is loaded."""
    path = Path(spec.teacher.path or "") if spec.teacher else Path()
    if spec.teacher is None or not path.is_absolute():
        return
    try:
        config = read_json(path / "config.json")
    except (OSError, ValueError):
        return
    if not isinstance(config, dict):
        return
    source: KeyPath = ("teacher", "path")
    if spec.teacher.parallel is not None:
        yield from _split(with_family_defaults(config), spec.teacher.parallel.tensor, "teacher", source)
    if spec.trainer.given("share_prefixes"):
        yield from _unshared_teacher(config, source)


def _unshared_teacher(config: dict[str, Any], source: KeyPath) -> Iterator[Finding]:
    """Reports a teacher whose sequences cannot share prefixes."""
    with suppress(ValueError):  # a broken config.json is reported when the model is loaded
        reason = reason_against_model(SHARED_PREFIXES, architecture(config))
        if reason is not None:
            message = f"is not supported for the teacher, {config['model_type']}: {reason}"
            yield Finding(("trainer", "share_prefixes"), message, "remove it", found=True, related=(source,))


def _heads(spec: Spec, config: dict[str, Any]) -> Iterator[Finding]:
    """Checks the tensor parallel degrees of the policy and of the critic, which has the same shape."""
    yield from _split(config, spec.trainer.parallel.tensor, "trainer")
    yield from _recurrent_heads(config, spec.trainer.parallel)
    if spec.critic.parallel is not None:
        yield from _split(config, spec.critic.parallel.tensor, "critic")


def _split(config: dict[str, Any], degree: int, section: str, source: KeyPath = MODEL) -> Iterator[Finding]:
    for name in ("num_attention_heads", "num_key_value_heads", "linear_num_key_heads", "vocab_size"):
        size = config.get(name)
        if isinstance(size, int) and size % degree:
            message = f"must divide the model's {name} = {size}, found {degree}"
            fits = " or ".join(str(each) for each in range(1, min(size, MAX_RANKS) + 1) if size % each == 0)
            path = (section, "parallel", "tensor")
            yield Finding(path, message, f"use {fits}", found=degree, related=(source,))
            return


def _server_heads(spec: Spec, config: dict[str, Any]) -> Iterator[Finding]:
    """Checks that the ranks of each SGLang server can divide the heads of attention: those of queries evenly,
    those of keys and values evenly, or with as many copies of each (SGLang asserts both when it starts).
    """
    if spec.engine.type != "sglang":
        return
    heads = config.get("num_attention_heads")
    shared_heads = None if "kv_lora_rank" in config else config.get("num_key_value_heads", heads)
    for group in policy_groups(spec):
        tensor, parts = group.section.tensor, attention_parts_of(group.section)
        own = group.path == POLICY or ("tensor",) in group.own_keys
        if not own or tensor % parts:  # the section of all groups, or reported by the server's size
            continue
        for name, size, copied in (
            ("num_attention_heads", heads, False),
            ("num_key_value_heads", shared_heads, True),
        ):
            if not isinstance(size, int) or size < 1 or _divided(size, tensor // parts, copied):
                continue
            share = f" / {parts} parts of attention" if parts > 1 else ""
            message = f"{tensor}{share} ranks cannot divide the model's {name} = {size}"
            ranks = range(1, MAX_RANKS // parts + 1)
            fits = [each * parts for each in ranks if _divided(size, each, copied)]
            near = min(fits, key=lambda each: abs(each - tensor))
            yield Finding((*group.path, "tensor"), message, f"use {near}", found=tensor, related=(MODEL,))
            break


def _divided(heads: int, ranks: int, copied: bool) -> bool:
    """Returns whether ranks can have equal numbers of heads, or equally many copies of one."""
    return heads % ranks == 0 or (copied and ranks % heads == 0)


def _recurrent_heads(config: dict[str, Any], parallel: ParallelSpec) -> Iterator[Finding]:
    """Checks that context-parallel ranks can divide the heads of Gated DeltaNet that each tensor-parallel
    rank has.
    """
    heads, degree = config.get("linear_num_key_heads"), parallel.context
    if not isinstance(heads, int) or heads % parallel.tensor:  # reported by `_split`
        return
    each = heads // parallel.tensor
    if each % degree:
        share = "" if parallel.tensor == 1 else f" / tensor {parallel.tensor} = {each}"
        message = f"must divide the model's linear_num_key_heads = {heads}{share}, found {degree}"
        fits = " or ".join(str(size) for size in range(1, each + 1) if each % size == 0)
        related = (MODEL, ("trainer", "parallel", "tensor"))
        yield Finding(
            ("trainer", "parallel", "context"), message, f"use {fits}", found=degree, related=related
        )


def _attention_interval(spec: Spec, config: dict[str, Any]) -> Iterator[Finding]:
    """Checks that SGLang can tell which layers have Gated DeltaNet."""
    if spec.engine.type != "sglang" or not family_of(config).recurrent:
        return
    try:
        interval = attention_interval(config)
    except (KeyError, TypeError, ValueError):
        return  # the model's own checks report a broken file
    if interval is None:
        message = "SGLang expects attention in every n-th layer, and layer_types in config.json differs"
        cure = 'set engine.type = "native"'
        yield Finding(("engine", "type"), message, cure, found="sglang", related=(MODEL,))


def _layers(spec: Spec, config: dict[str, Any]) -> Iterator[Finding]:
    layers, parallel = config.get("num_hidden_layers"), spec.trainer.parallel
    if parallel.pipeline > 1 and isinstance(layers, int) and layers < parallel.stages:
        each = "one stage" if parallel.stages == parallel.pipeline else "two stages"
        message = (
            f"{parallel.pipeline} ranks with {each} each ({parallel.pipeline_schedule}) need at least "
            f"{parallel.stages} layers, and the model has {layers}"
        )
        cure = f"use at most {layers * parallel.pipeline // parallel.stages}"
        related = (MODEL, ("trainer", "parallel", "pipeline_schedule"))
        path = ("trainer", "parallel", "pipeline")
        yield Finding(path, message, cure, found=parallel.pipeline, related=related)


def _stage_layers(spec: Spec, config: dict[str, Any]) -> Iterator[Finding]:
    """Checks that the layers given to pipeline stages are those of the model."""
    layers, parallel = config.get("num_hidden_layers"), spec.trainer.parallel
    sizes = parallel.pipeline_layers
    if parallel.pipeline == 1 or sizes is None or not isinstance(layers, int) or sum(sizes) == layers:
        return
    message = f"the numbers add up to {sum(sizes)}, and the model has {layers} layers"
    cure = "change them, or remove the key: the layers are then divided equally"
    path: KeyPath = ("trainer", "parallel", "pipeline_layers")
    yield Finding(path, message, cure, related=(MODEL,))


def _shared_choices(spec: Spec, config: dict[str, Any]) -> Iterator[Finding]:
    """Checks that layers which share the keys of an indexer are on its pipeline stage."""
    parallel, layers = spec.trainer.parallel, config.get("num_hidden_layers")
    if parallel.pipeline == 1 or (parallel.pipeline_layers and sum(parallel.pipeline_layers) != layers):
        return  # another rule reports other numbers of layers
    try:
        refusal = stage_without_choice(architecture(config), parallel)
    except ValueError:
        return  # the model's own checks report a broken file
    if refusal is not None:
        path: KeyPath = ("trainer", "parallel", "pipeline")
        related = (MODEL, ("trainer", "parallel", "pipeline_layers"))
        yield Finding(path, refusal[0], refusal[1], found=parallel.pipeline, related=related)


def _experts(spec: Spec, config: dict[str, Any]) -> Iterator[Finding]:
    """Checks that the degree of expert parallelism divides the experts of a model that has some."""
    degree = spec.trainer.parallel.expert
    found = [config[name] for name in EXPERT_COUNTS if isinstance(config.get(name), int)]
    if degree > 1 and found and found[0] % degree:
        fits = " or ".join(str(each) for each in range(1, found[0] + 1) if found[0] % each == 0)
        message = f"must divide the model's {found[0]} experts, found {degree}"
        path: KeyPath = ("trainer", "parallel", "expert")
        yield Finding(path, message, f"use {fits}", found=degree, related=(MODEL,))

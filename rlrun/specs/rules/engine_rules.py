"""Rules about `[engine]` and `[[engines]]`: what each type needs, its model, its drafts, and names."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlrun.models.config_defaults import EXPERT_COUNTS
from rlrun.models.decoder_config import packed_groups, quantisation
from rlrun.models.json_files import read_json
from rlrun.specs.derived.engine_groups import policy_groups
from rlrun.specs.derived.engine_sections import POLICY, engine_sections
from rlrun.specs.derived.lora_sync import why_merged
from rlrun.specs.derived.on_policy_target import rounds_as_target
from rlrun.specs.derived.server_size import COPIES, STAGES, argument_key, copies_of, stages_of
from rlrun.specs.derived.sglang_arguments import flag_name
from rlrun.specs.derived.speculation import DRAFT_FOLDER
from rlrun.specs.derived.weight_sync import carrier_of
from rlrun.specs.engine_names import unknown_engine
from rlrun.specs.problems.findings import Finding
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.sections.engine import EngineSpec
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.weight_carriers import DISK

_TYPE = (("engine", "type"),)
_RESERVED_NAMES = ("trainer", "engine", "driver", "reward")
"""Names that other processes of a job have."""
_STEPS, _BRANCHES = "speculative-num-steps", "speculative-eagle-topk"
_SHAPE_KEYS = ("model_type", "vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size")
_ENGINE_MODEL = ("engine", "model")
_POLICY_PATH = (("model", "path"),)


def external_urls(spec: Spec) -> Iterator[Finding]:
    """External engines need addresses: rlrun does not start them."""
    for path, section in engine_sections(spec):
        if section.type == "external" and not section.urls:
            cure = 'add `urls = ["http://HOST:PORT"]`'
            message = "external engines need addresses, and none is given"
            yield Finding((*path, "type"), message, cure, found="external")


def server_parallelism(spec: Spec) -> Iterator[Finding]:
    """Reports ways to split a server over GPUs for which weights cannot be updated."""
    for path, section in engine_sections(spec):
        if section.type != "sglang":
            continue
        copies, stages = argument_key(section, COPIES), argument_key(section, STAGES)
        if copies and copies_of(section) > 1:
            message = "a server must hold one copy of the model: weight updates cannot address several copies"
            cure = f"remove {copies}, and start more servers (count) or set attn_dp_size"
            yield Finding((*path, "sglang", copies), message, cure, at_value=False)
        if stages and stages_of(section) > 1 and path == POLICY and carrier_of(spec) is not DISK:
            message = "pipeline stages of a server need different weights, which they can only read from disk"
            cure = 'add `weight_sync = "disk"` under [engine]'
            related: tuple[KeyPath, ...] = (("engine", "weight_sync"),)
            yield Finding((*path, "sglang", stages), message, cure, at_value=False, related=related)


def groups_of_policy(spec: Spec) -> Iterator[Finding]:
    """Only the policy's engines have groups, and come and go."""
    for path, section in engine_sections(spec):
        if section.groups and path != POLICY:
            message = "only the policy's servers ([engine]) can have groups"
            yield Finding((*path, "groups"), message, "remove it, and set count", at_value=False)
        if section.min_count is not None and path != POLICY:
            message = "only the policy's engines ([engine]) can come and go"
            yield Finding((*path, "min_count"), message, "remove it, and set count", at_value=False)


def elastic_engines(spec: Spec) -> Iterator[Finding]:
    """A job cannot need more engines than it may have."""
    least, count = spec.engine.min_count, spec.engine.count
    if spec.engine.groups:
        return  # refused with min_count by the table of combinations
    if least is not None and count is None:
        message = "is the smallest number of engines, and engine.count, the largest, is missing"
        yield Finding((*POLICY, "min_count"), message, f"add `count = {least + 1}`, or another number")
    elif least is not None and count is not None and least > count:
        message = f"the job would need {least} engines, and engine.count allows {count}"
        yield Finding((*POLICY, "min_count"), message, f"lower it to {count} or less", found=least)


def roles_of_groups(spec: Spec) -> Iterator[Finding]:
    """Servers that prefill and servers that decode need each other, and do not go with regular ones."""
    roles = [group.role for group in spec.engine.groups]
    for number, role in enumerate(roles):
        path: KeyPath = (*POLICY, "groups", number, "role")
        partner = {"prefill": "decode", "decode": "prefill"}.get(role)
        if partner is not None and partner not in roles:
            message = f"needs servers that {partner}, and no group has that role"
            yield Finding(path, message, f'add [[engine.groups]] with `role = "{partner}"`', found=role)
        elif partner is None and set(roles) != {"regular"}:
            message = "every sample would need a choice between such servers and those with a role"
            cure = "give this group a role too, or remove the roles of the others"
            yield Finding(path[:-1], message, cure, at_value=False)


def reproducible_server(spec: Spec) -> Iterator[Finding]:
    """A server follows the seeds of requests only with an argument of its own."""
    if not spec.deterministic or spec.engine.type != "sglang" or rounds_as_target(spec):
        return
    name = "enable_deterministic_inference"
    arguments = [group.section.sglang for group in policy_groups(spec)]
    enabled = all(given.get(name) or given.get(flag_name(name)) for given in arguments)
    if spec.cluster.gpus_per_node and not enabled:
        message = f"an SGLang server samples reproducibly only with {name}"
        cure = f"add `{name} = true` under [engine.sglang], or remove `deterministic`"
        yield Finding(("deterministic",), message, cure, found=True, related=_TYPE)


def engine_names(spec: Spec) -> Iterator[Finding]:
    """Each of `[[engines]]` has a model and a name that nothing else has."""
    names = [section.name for section in spec.engines]
    for number, section in enumerate(spec.engines):
        path: KeyPath = ("engines", number)
        if section.name in names[:number]:
            message = f'the name "{section.name}" is used by two [[engines]]'
            yield Finding((*path, "name"), message, "choose another name", found=section.name)
        if section.name in _RESERVED_NAMES:
            message = f'the name "{section.name}" is reserved for other processes of the job'
            yield Finding((*path, "name"), message, "choose another name", found=section.name)
        if section.path is None and section.adapter is None and section.type != "external":
            cure = 'add `path = "…"`, or `adapter = "…"` for an adapter of the policy\'s model'
            related = ((*path, "path"), (*path, "adapter"))
            message = f'engine "{section.name}" has no model'
            yield Finding(path, message, cure, at_value=False, related=related)


def engine_references(spec: Spec) -> Iterator[Finding]:
    """Every engine that a section names must exist in `[[engines]]`; plugins' parameters are checked with the
    plugins (rlrun.plugins.validation).
    """
    names = [section.name for section in spec.engines]
    references: list[tuple[KeyPath, object]] = [(("reference", "engine"), spec.reference.engine)]
    if spec.teacher is not None:
        references.append((("teacher", "engine"), spec.teacher.engine))
        references += [(("teacher", "sources", key), name) for key, name in spec.teacher.sources.items()]
    for path, name in references:
        yield from unknown_engine(path, name, names)


def speculative_decoding(spec: Spec) -> Iterator[Finding]:
    """Drafts have a model, and their shape is given in full."""
    for path, section in engine_sections(spec):
        yield from _draft_model((*path, "speculative", "algorithm"), section)
        yield from _tree(path, section)


def draft_folder_updates(spec: Spec) -> Iterator[Finding]:
    """A draft model in a folder of its own does not get the policy's weights."""
    engine, path = spec.engine, ("engine", "speculative", "algorithm")
    if engine.type != "sglang" or engine.speculative.algorithm not in DRAFT_FOLDER:
        return
    if spec.trainer.lora is not None and engine.given("lora_sync") != "merged" and why_merged(spec) is None:
        return  # the model in the server stays as it is
    message = "SGLang would load the policy's files into the draft model, too, whose tensors have such names"
    if carrier_of(spec) is DISK:
        given = engine.given("weight_sync")
        cure = 'use "tensor" or "broadcast"' if given else 'set `weight_sync = "broadcast"`'
        yield Finding(("engine", "weight_sync"), message, cure, found=given, related=(path,))
    elif engine.weight_delta != "off":
        found = engine.weight_delta
        yield Finding(("engine", "weight_delta"), message, "remove it", found=found, related=(path,))


def served_model(spec: Spec) -> Iterator[Finding]:
    """The served model has the policy's shape and a quantisation that can be updated.

    An id on the hub is not checked.
    """
    if spec.engine.type != "sglang" or spec.engine.model is None:
        return
    served = _model_config(Path(spec.engine.model))
    if served is None:
        message = f"there is no config.json in {spec.engine.model}"
        yield Finding(_ENGINE_MODEL, message, "give a Hugging Face model folder", related=_POLICY_PATH)
        return
    policy = _model_config(Path(spec.model.path))
    for name in _SHAPE_KEYS:
        if policy is not None and served.get(name) != policy.get(name):
            message = f"its {name} is {served.get(name)}, and the policy's is {policy.get(name)}"
            yield Finding(
                _ENGINE_MODEL,
                message,
                "convert the policy's own folder: rlrun convert hf-to-hf SRC DST",
                related=_POLICY_PATH,
            )
            return
    try:
        settings = quantisation(served)
    except ValueError as error:
        yield Finding(_ENGINE_MODEL, str(error), "copy the folder again", related=_POLICY_PATH)
        return
    if settings.get("format") == "pack-quantized":
        yield from _served_int4(spec, settings, served)
    elif settings and (settings.get("quant_method"), settings.get("weight_block_size")) != (
        "fp8",
        [128, 128],
    ):
        message = f"weights cannot be updated in its quantisation ({settings.get('quant_method')})"
        yield Finding(
            _ENGINE_MODEL,
            message,
            "convert it: rlrun convert hf-to-hf SRC DST --quantize fp8-block",
            related=_POLICY_PATH,
        )


ENGINE_RULES = (
    external_urls,
    groups_of_policy,
    elastic_engines,
    roles_of_groups,
    server_parallelism,
    served_model,
    reproducible_server,
    speculative_decoding,
    draft_folder_updates,
    engine_names,
    engine_references,
)


def _draft_model(key: KeyPath, section: EngineSpec) -> Iterator[Finding]:
    algorithm, model = section.speculative.algorithm, section.speculative.draft_model
    if algorithm in DRAFT_FOLDER and section.type == "sglang" and model is None:
        message = f'algorithm "{algorithm}" guesses with a model of its own, and none is given'
        cure = 'add `draft_model = "FOLDER"`, or use "ngram" or "mtp"'
        yield Finding(key, message, cure, found=algorithm, related=((*key[:-1], "draft_model"),))


def _tree(path: KeyPath, section: EngineSpec) -> Iterator[Finding]:
    """A draft that is a tree needs three numbers; one that is a chain only `draft_tokens`."""
    given = {flag_name(name): (name, value) for name, value in section.sglang.items()}
    if section.type != "sglang" or section.speculative.algorithm is None:
        return
    key: KeyPath = (*path, "speculative", "draft_tokens")
    is_chain = given.get(_BRANCHES, ("", 1))[1] == 1
    for flag in (_STEPS, _BRANCHES):
        if flag not in given:
            continue
        argument = (*path, "sglang", given[flag][0])
        if is_chain:
            message = "a draft without branches has as many steps as tokens"
            yield Finding(argument, message, "set speculative.draft_tokens instead", at_value=False)
        elif section.speculative.draft_tokens is None:
            message, cure = "a draft with branches needs its number of tokens", "add `draft_tokens`"
            yield Finding(argument, message, cure, at_value=False, related=(key,))


def _served_int4(spec: Spec, settings: Mapping[str, Any], served: dict[str, Any]) -> Iterator[Finding]:
    """Servers with matrices in four bits get updates from a trainer that rounds them in the same groups."""
    sizes = packed_groups(settings)
    related: tuple[KeyPath, ...] = (("trainer", "precision"), ("trainer", "int4_group"))
    if not any(served.get(name) for name in EXPERT_COUNTS):
        message = "SGLang can only update the matrices of routed experts in INT4, and the model has none"
        yield Finding(_ENGINE_MODEL, message, "give a folder in bfloat16 or FP8", related=_POLICY_PATH)
    elif (group := spec.trainer.rounded_group) is None:
        message = "its weights are in INT4, and the trainer does not round them"
        yield Finding(_ENGINE_MODEL, message, 'set trainer.precision = "int4_qat"', related=related)
    elif any(size != group for size in sizes or [None]):
        message = f"its groups have {', '.join(map(str, sizes))} numbers, and trainer.int4_group is {group}"
        yield Finding(_ENGINE_MODEL, message, "set trainer.int4_group to the folder's group", related=related)


def _model_config(folder: Path) -> dict[str, Any] | None:
    """A folder's config.json; None if there is none that can be read."""
    try:
        config = read_json(folder / "config.json")
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) else None

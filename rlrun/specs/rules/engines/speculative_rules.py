"""Rules about `[engine.speculative]`: each engine's algorithms, and those that need a draft model."""

from collections.abc import Iterator

from rlrun.specs.derived.engine_sections import engine_sections
from rlrun.specs.derived.lora_sync import why_merged
from rlrun.specs.derived.sglang_arguments import flag_name
from rlrun.specs.derived.speculation import DRAFT_FOLDER
from rlrun.specs.derived.weight_sync import carrier_of
from rlrun.specs.problems.findings import Finding
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.sections.engine import EngineSpec
from rlrun.specs.sections.job import Spec

_STEPS, _BRANCHES = "speculative-num-steps", "speculative-eagle-topk"


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
    if carrier_of(spec) == "disk":
        given = engine.given("weight_sync")
        cure = 'use "tensor" or "broadcast"' if given else 'set `weight_sync = "broadcast"`'
        yield Finding(("engine", "weight_sync"), message, cure, found=given, related=(path,))
    elif engine.weight_delta != "off":
        found = engine.weight_delta
        yield Finding(("engine", "weight_delta"), message, "remove it", found=found, related=(path,))


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


SPECULATIVE_RULES = (speculative_decoding, draft_folder_updates)

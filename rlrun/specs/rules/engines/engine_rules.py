"""Rules about `[engine]` and `[[engines]]`: what each type of engine needs, and names."""

from collections.abc import Iterator, Sequence

from rlrun.specs.derived.engine_sections import POLICY, engine_sections
from rlrun.specs.derived.on_policy_target import rounds_as_target
from rlrun.specs.derived.server_size import COPIES, STAGES, argument_key, copies_of, stages_of
from rlrun.specs.derived.sglang_arguments import flag_name
from rlrun.specs.derived.weight_sync import carrier_of
from rlrun.specs.problems.findings import Finding
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.problems.spelling import nearest
from rlrun.specs.rules.engines.speculative_rules import SPECULATIVE_RULES
from rlrun.specs.rules.served_model import served_model
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.scoring import RewardSpec

_TYPE = (("engine", "type"),)
_RESERVED_NAMES = ("trainer", "engine", "driver", "reward")
"""Names that other processes of a job have."""


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
        if stages and stages_of(section) > 1 and path == POLICY and carrier_of(spec) != "disk":
            message = "pipeline stages of a server need different weights, which they can only read from disk"
            cure = 'add `weight_sync = "disk"` under [engine]'
            related: tuple[KeyPath, ...] = (("engine", "weight_sync"),)
            yield Finding((*path, "sglang", stages), message, cure, at_value=False, related=related)


def reproducible_server(spec: Spec) -> Iterator[Finding]:
    """A server follows the seeds of requests only with an argument of its own."""
    if not spec.deterministic or spec.engine.type != "sglang" or rounds_as_target(spec):
        return
    name = "enable_deterministic_inference"
    enabled = spec.engine.sglang.get(name) or spec.engine.sglang.get(flag_name(name))
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
    """Every referenced engine must exist in `[[engines]]`."""
    names = [section.name for section in spec.engines]
    references: list[tuple[KeyPath, object]] = [
        (("reference", "engine"), spec.reference.engine),
        *(
            ((*table, "rewards", number, "engine"), reward.params.get("engine"))
            for table, rewards in _rewards(spec)
            for number, reward in enumerate(rewards)
            if reward.type in ("llm_judge", "served_reward_model")
        ),
    ]
    if spec.teacher is not None:
        references.append((("teacher", "engine"), spec.teacher.engine))
        references += [(("teacher", "sources", key), name) for key, name in spec.teacher.sources.items()]
    for path, name in references:
        if isinstance(name, str) and name not in names:
            suggestion = nearest(name, names)
            message = f'no table of [[engines]] is named "{name}"'
            cure = f'add a table [[engines]] with `name = "{name}"`'
            cure = f'did you mean "{suggestion}"?' if suggestion else cure
            yield Finding(path, message, cure, suggestion, name, related=(("engines",),))


def _rewards(spec: Spec) -> Iterator[tuple[KeyPath, Sequence[RewardSpec]]]:
    """Yields the tables of rewards with their paths: the job's, and those of evaluation datasets."""
    yield (), spec.rewards
    for number, dataset in enumerate(spec.eval.datasets):
        yield ("eval", "datasets", number), dataset.given("rewards") or ()


ENGINE_RULES = (
    external_urls,
    server_parallelism,
    served_model,
    reproducible_server,
    *SPECULATIVE_RULES,
    engine_names,
    engine_references,
)

"""Translates slime's flags about machines and parallelism."""

import math
from collections.abc import Mapping

from rlrun.converters.imports.secrets import is_secret
from rlrun.converters.slime.draft import Draft
from rlrun.models.json_files import parse_json
from rlrun.specs.derived.own_variables import why_own_variable

_DEGREES = {
    "tensor": "--tensor-model-parallel-size",
    "pipeline": "--pipeline-model-parallel-size",
    "context": "--context-parallel-size",
    "expert": "--expert-model-parallel-size",
}
"""Maps keys of `[trainer.parallel]` to flags."""
_ROOM_FOR_WEIGHTS = 80e9 / 8
"""Bytes of an 80 GB GPU that the gathered weights of a stage may take, before they are freed in between."""
_END_STAGES = ("--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers")


def layout(draft: Draft) -> None:
    """Sets nodes, GPUs and the degrees of parallelism; `fsdp` gets the remaining, data-parallel ranks."""
    nodes, gpus = draft.count("--actor-num-nodes", 1), draft.count("--actor-num-gpus-per-node", 8)
    _parallelism(draft, nodes * gpus)
    colocated, rollout_gpus = _rollout_gpus(draft)
    separate_gpus = 0 if colocated else rollout_gpus
    nodes = _cluster(draft, nodes, gpus, separate_gpus)
    if separate_gpus or colocated:
        kind = "colocated" if colocated else "disaggregated"
        draft.set("cluster.placement", kind, ("--colocate" if colocated else "--rollout-num-gpus",))
    if nodes > 1:
        draft.join_cluster()


def environment(draft: Draft) -> None:
    """Sets the environment variables of the ranks; secrets become references."""
    name = "--train-env-vars"
    for flag in draft.given(name):
        try:
            variables = parse_json(draft.text(name) or "{}")
        except ValueError:
            variables = None
        if not isinstance(variables, dict):
            draft.note(flag, "not a JSON object: set cluster.environment by hand")
            continue
        kept = {key: str(value) for key, value in variables.items() if why_own_variable(key) is None}
        if kept:
            values = {key: f"${{env:{key}}}" if is_secret(key) else value for key, value in kept.items()}
            draft.set("cluster.environment", values, (name,), "engines get them too")
        if left := [key for key in variables if key not in kept]:
            draft.notes.append(f"{name}: {', '.join(left)}: left out, because rlrun or the launch sets them")


def _parallelism(draft: Draft, ranks: int) -> None:
    """Sets the degrees of parallelism."""
    degrees = {name: draft.count(flag, 1) for name, flag in _DEGREES.items()}
    family = draft.only_transformers
    for name, flag in _DEGREES.items():
        if family is not None and degrees[name] > 1 and name not in family.layouts:
            # losses and gradients do not depend on the layout
            degrees[name] = 1
            draft.note(draft.flags[flag], "left out: the layers of transformers are sharded instead")
        elif flag in draft.flags:
            draft.set(f"trainer.parallel.{name}", degrees[name], (flag,))
    for given in draft.given("--sequence-parallel"):
        if degrees["tensor"] > 1:
            draft.set("trainer.parallel.sequence_parallel", True, (given.name,))
        else:
            draft.note(given, "no effect: there is no tensor parallelism")
    _pipeline_layers(draft, degrees["pipeline"])
    model = degrees["tensor"] * degrees["pipeline"] * degrees["context"]
    draft.set("trainer.parallel.fsdp", max(1, ranks // model), (), f"{ranks} ranks / {model}")
    _resharding(draft, degrees, ranks)
    stage = ranks // model * degrees["tensor"] * degrees["context"]
    if stage % degrees["expert"]:
        draft.notes.append(
            f"the {stage} ranks of a pipeline stage cannot be divided by {degrees['expert']} expert-parallel "
            "ranks, which Megatron refuses too: change trainer.parallel, or add nodes"
        )
    if ranks % model:
        draft.notes.append(
            f"{ranks} GPUs cannot be divided by {model} model-parallel ranks: change trainer.parallel"
        )


def _resharding(draft: Draft, degrees: Mapping[str, int], ranks: int) -> None:
    """Frees the gathered layers of a large pipeline after each forward pass.

    Megatron keeps a stage's weights on each of its GPUs, as FSDP does in a pipeline by default. FSDP holds
    its shards and float32 gradients besides, so a large stage would not fit.
    """
    if degrees["pipeline"] == 1 or ranks <= degrees["pipeline"] * degrees["tensor"]:
        return
    size = _stage_bytes(draft, degrees)
    if size > _ROOM_FOR_WEIGHTS:
        comment = f"about {size / 2**30:.0f} GiB of a stage's weights would stay gathered on each GPU"
        draft.set("trainer.parallel.reshard_after_forward", "always", (), comment)


def _stage_bytes(draft: Draft, degrees: Mapping[str, int]) -> float:
    """Returns roughly the bytes of one stage's bfloat16 weights on one GPU, from Megatron's model arguments.

    Attention counts as four square matrices; embedding and head are left out.
    """
    hidden = draft.whole("--hidden-size", 0)
    experts = draft.whole("--num-experts", 0)
    width = draft.whole("--moe-shared-expert-intermediate-size", 0)
    width = width if experts else draft.whole("--ffn-hidden-size", 0)
    dense = (4 * hidden**2 + 3 * hidden * width) / degrees["tensor"]
    expert = 3 * hidden * draft.whole("--moe-ffn-hidden-size", 0)
    layers = draft.whole("--num-layers", 0) / degrees["pipeline"]
    return layers * (dense + expert * experts / degrees["expert"]) * 2


def _pipeline_layers(draft: Draft, stages: int) -> None:
    """Sets the layers of each stage where the script gives those of the first or last stage.

    Megatron divides the remaining layers equally over the remaining stages.
    """
    given = draft.given(*_END_STAGES)
    if not given:
        return
    configured = draft.model_config.get("num_hidden_layers")
    layers = configured if isinstance(configured, int) else draft.whole("--num-layers", 0)
    first, last = (draft.count(name, 1) if name in draft.flags else None for name in _END_STAGES)
    sizes = _stage_sizes(layers, stages, first, last)
    for flag in given:
        if stages == 1:
            draft.note(flag, "no effect: --pipeline-model-parallel-size is 1")
        elif sizes is None:
            why = f"{layers} layers cannot" if layers else "the number of layers is unknown, so they cannot"
            draft.note(flag, f"{why} be divided over {stages} stages: set trainer.parallel.pipeline_layers")
    if sizes is not None:
        draft.set("trainer.parallel.pipeline_layers", sizes, [flag.name for flag in given])


def _stage_sizes(layers: int, stages: int, first: int | None, last: int | None) -> list[int] | None:
    """Returns the layers of each stage, given those of the first and last stage or None for an equal share;
    None if that is impossible.
    """
    equal_stages = stages - (first is not None) - (last is not None)
    remaining = layers - (first or 0) - (last or 0)
    if stages == 1 or remaining < equal_stages or (remaining % equal_stages if equal_stages else remaining):
        return None
    equal = remaining // max(equal_stages, 1)
    ends = [[] if size is None else [size] for size in (first, last)]
    return [*ends[0], *([equal] * equal_stages), *ends[1]]


def _rollout_gpus(draft: Draft) -> tuple[bool, int]:
    """Returns whether engines share the trainer's GPUs, and how many GPUs the flags give them."""
    external = bool(draft.given("--rollout-external-engine-addrs"))
    colocated, gpus = "--colocate" in draft.flags, max(0, draft.whole("--rollout-num-gpus", 0))
    if draft.algorithm == "sft":
        for flag in draft.given("--rollout-num-gpus", "--colocate", "--num-gpus-per-node"):
            draft.note(flag, "no effect: there are no engines")
        gpus, colocated = 0, False
    elif not colocated and not gpus and not external:
        draft.notes.append(
            "neither --colocate nor --rollout-num-gpus is given: set cluster.placement and the engines' GPUs"
        )
    if external or (colocated and gpus):
        why = "engines are external" if external else "engines use the trainer's GPUs"
        for flag in draft.given("--rollout-num-gpus"):
            draft.note(flag, f"no effect: {why}")
    return colocated, 0 if external else gpus


def _cluster(draft: Draft, trainer_nodes: int, trainer_gpus: int, separate_gpus: int) -> int:
    """Sets the nodes of trainer and engines and their GPUs, and returns the number of nodes.

    `trainer_gpus`: GPUs per node of the trainer. `separate_gpus`: GPUs that only engines use.
    """
    used = trainer_nodes * trainer_gpus + separate_gpus
    nodes, gpus = _nodes_for(
        trainer_nodes, trainer_gpus, separate_gpus, draft.count("--num-gpus-per-node", 8)
    )
    if used != nodes * gpus:
        draft.notes.append(
            f"the script uses {used} GPUs, but {nodes} nodes of {gpus} have {nodes * gpus}: check [cluster]"
        )
    engine_flags = ["--rollout-num-gpus"] if separate_gpus else []
    draft.set("cluster.nodes", nodes, ("--actor-num-nodes", *engine_flags))
    draft.set("cluster.gpus_per_node", gpus, ("--actor-num-gpus-per-node", *engine_flags))
    for flag in draft.given("--num-gpus-per-node"):
        draft.note(flag, "included in cluster.gpus_per_node")
    return nodes


def _nodes_for(nodes: int, gpus: int, separate_gpus: int, gpus_per_node: int) -> tuple[int, int]:
    """Returns the nodes and the GPUs per node for trainer and engines.

    The trainer has `nodes` of `gpus`; engines fill its node, or further ones, with `separate_gpus`.
    """
    total = nodes * gpus + separate_gpus
    if not separate_gpus:
        return nodes, gpus
    if nodes == 1 and total <= gpus_per_node:
        return 1, total
    if total % gpus_per_node == 0:
        return total // gpus_per_node, gpus_per_node
    return nodes + math.ceil(separate_gpus / gpus), gpus

"""Translates slime's flags about machines and parallelism."""

import math

from rlrun.converters.slime.draft import Draft

_LAYOUT = ("tensor", "pipeline", "context", "expert")


def layout(draft: Draft) -> None:
    """Sets nodes, GPUs and the degrees of parallelism; `fsdp` gets the remaining, data-parallel ranks."""
    nodes, gpus = draft.count("--actor-num-nodes", 1), draft.count("--actor-num-gpus-per-node", 8)
    ranks = nodes * gpus
    degrees = {}
    for name, megatron in zip(
        _LAYOUT, ("tensor-model", "pipeline-model", "context", "expert-model"), strict=True
    ):
        degrees[name] = draft.count(f"--{megatron}-parallel-size", 1)
        if f"--{megatron}-parallel-size" in draft.flags:
            draft.set(f"trainer.parallel.{name}", degrees[name], (f"--{megatron}-parallel-size",))
    for flag in draft.given("--sequence-parallel"):
        if degrees["tensor"] > 1:
            draft.set("trainer.parallel.sequence_parallel", True, (flag.name,))
        else:
            draft.note(flag, "no effect: --tensor-model-parallel-size is 1")
    model = degrees["tensor"] * degrees["pipeline"] * degrees["context"]
    draft.set("trainer.parallel.fsdp", max(1, ranks // model), (), f"{ranks} ranks / {model}")
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
    _machines(draft, nodes, gpus)


def _machines(draft: Draft, nodes: int, gpus: int) -> None:
    """Sets the nodes and GPUs of ranks and engines."""
    external = bool(draft.given("--rollout-external-engine-addrs"))
    colocated, rollout = "--colocate" in draft.flags, max(0, draft.whole("--rollout-num-gpus", 0))
    if draft.algorithm == "sft":
        for flag in draft.given("--rollout-num-gpus", "--colocate", "--num-gpus-per-node"):
            draft.note(flag, "no effect: there are no engines")
        rollout, colocated = 0, False
    elif not colocated and not rollout and not external:
        draft.notes.append(
            "neither --colocate nor --rollout-num-gpus is given: set cluster.placement and the engines' GPUs"
        )
    if external or (colocated and rollout):
        for flag in draft.given("--rollout-num-gpus"):
            draft.note(
                flag, "no effect: engines are external" if external else "engines use the trainer's GPUs"
            )
        rollout = 0 if external else rollout
    apart = 0 if colocated else rollout
    per_node = draft.count("--num-gpus-per-node", 8)
    total = nodes * gpus + apart
    if apart and nodes == 1 and total <= per_node:
        gpus = total
    elif apart and total % per_node == 0:
        nodes, gpus = total // per_node, per_node
    elif apart:
        nodes += math.ceil(apart / gpus)
    used = draft.count("--actor-num-nodes", 1) * draft.count("--actor-num-gpus-per-node", 8) + apart
    if used != nodes * gpus:
        draft.notes.append(
            f"the script uses {used} GPUs, but {nodes} nodes of {gpus} have {nodes * gpus}: check [cluster]"
        )
    draft.set("cluster.nodes", nodes, ("--actor-num-nodes", *(["--rollout-num-gpus"] if apart else [])))
    draft.set(
        "cluster.gpus_per_node",
        gpus,
        ("--actor-num-gpus-per-node", *(["--rollout-num-gpus"] if apart else [])),
    )
    if apart or colocated:
        kind = "colocated" if colocated else "disaggregated"
        draft.set("cluster.placement", kind, ("--colocate" if colocated else "--rollout-num-gpus",))
    if nodes > 1:
        draft.set("cluster.address", "auto", (), "the Ray cluster that this host has joined")
        draft.notes.append(
            'cluster.address: "auto" joins the Ray cluster of this host; start Ray on every node first'
        )
    for flag in draft.given("--num-gpus-per-node"):
        draft.note(flag, "included in cluster.gpus_per_node")

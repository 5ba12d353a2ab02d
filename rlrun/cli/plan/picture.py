"""Shows a plan in a terminal: its numbers, the mesh, and the device of every rank and engine."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby

from rich.table import Table

from rlrun.plugins.rollouts.agent.rollout import AgentParams
from rlrun.runner.host.memory import host_memory
from rlrun.runner.planning.device_map import DeviceLocation, available_cores
from rlrun.runner.planning.plan import EnginePlan, Plan, RankPlan
from rlrun.specs.derived.agent_programs import program_limit
from rlrun.specs.derived.engine_groups import policy_groups
from rlrun.specs.derived.sampling_mask import cuts_vocabulary
from rlrun.specs.sections.job import Spec

_SHORT = {"pipeline": "pp", "replicate": "rep", "fsdp": "fsdp", "context": "cp", "tensor": "tp"}


def numbers_table(spec: Spec, plan: Plan) -> Table:
    """Returns a table of the batch equation and the numbers that follow from it."""
    batch = plan.batch
    rows: list[tuple[object, ...]] = [
        ("prompts per step (P)", batch.prompts, "rollout.batch_size"),
        ("samples per prompt (n)", batch.samples_per_prompt, "rollout.samples_per_prompt"),
        ("samples per optimizer step (G)", batch.global_batch_size, "trainer.global_batch_size"),
        ("optimizer steps per step (S)", batch.optimizer_steps, "trainer.optimizer_steps"),
    ]
    if (probe := spec.rollout.probe_samples) is not None:
        rows.insert(2, ("samples before an early stop (m)", probe, "rollout.probe_samples"))
    if (responses := plan.responses_per_prompt) > batch.samples_per_prompt:
        rows.insert(2, ("responses generated per prompt", responses, "n + 1, the last one greedy"))
    if not plan.rollout:
        rows = [
            ("demonstrations per optimizer step (G)", batch.global_batch_size, "trainer.global_batch_size")
        ]
    per_rank = batch.global_batch_size // spec.trainer.parallel.data_degree
    cut = "max_tokens_per_rank" if spec.trainer.micro_batch_size is None else "micro_batch_size"
    epochs = f"{spec.trainer.epochs} · ⌊rows / {batch.prompts}⌋"
    rows += [
        ("samples per data rank", per_rank, "G / (fsdp · replicate)"),
        ("steps", epochs if plan.steps is None else plan.steps, "trainer.steps or epochs"),
        ("optimizer steps of the job", plan.optimizer_steps or f"{epochs} · S", "steps · S"),
        (
            "tokens per prompt, at most",
            spec.rollout.max_prompt_tokens,
            "rollout.max_prompt_tokens, or what fits",
        ),
        *_response_rows(spec, plan),
        ("tokens per sample, at most", plan.max_sample_tokens, "prompt + response, also in evaluation"),
        ("tokens per micro-batch", plan.micro_batch_tokens, f"trainer.{cut}"),
    ]
    rows += _agent_rows(spec)
    if plan.rollout and cuts_vocabulary(spec):
        rows.append(("log-probs are relative to", _support(spec), "rollout.sampling_mask"))
    if plan.engines:
        source = "engine.max_cache_tokens" if spec.engine.max_cache_tokens else "engine.max_running samples"
        rows.append(("tokens of samples in KV cache", plan.cache_tokens, source))
    product = f"P·n = {batch.samples} = G·S" if plan.rollout else f"G = {batch.global_batch_size}"
    return table(f"{spec.name}: {product}", ("number", "value", "from"), rows)


def _agent_rows(spec: Spec) -> list[tuple[object, ...]]:
    """Returns what limits an agent; nothing for other rollouts."""
    function = spec.rollout.function
    if function.type != "agent":
        return []
    agent = AgentParams.model_validate(function.params)
    rows: list[tuple[object, ...]] = [
        ("answers per execution, at most", agent.max_turns, "rollout.function.max_turns")
    ]
    if (programs := program_limit(function, available_cores(), host_memory().total)) is not None:
        rows.append(("programs of the agent at once", programs.number, programs.reason))
        rows.append(("a program, at most", "\n".join(agent.limits.described()), "rollout.function.limits"))
        rows.append(("a program runs in", agent.sandbox.described(), "rollout.function.sandbox"))
    return rows


def _response_rows(spec: Spec, plan: Plan) -> list[tuple[object, ...]]:
    """Returns the rows with the limits of a response; demonstrations have no turns and no deadline."""
    rollout = spec.rollout
    limits: list[tuple[object, ...]] = [
        ("tokens per response, all turns", rollout.max_response_tokens, "rollout.max_response_tokens")
    ]
    if plan.rollout:
        if rollout.function.type != "single_turn" or rollout.max_turn_tokens is not None:
            turn = rollout.turn_tokens(rollout.max_response_tokens)
            limits.append(("tokens per turn", turn, "rollout.max_turn_tokens, or as for the response"))
        seconds = f"{rollout.seconds_for(rollout.max_response_tokens):g}"
        limits.append(("seconds per sample", seconds, "rollout.request_timeout, or 600 and 5 tokens/s"))
    return limits


def _support(spec: Spec) -> str:
    """Returns the set of tokens over which the probabilities of samples are normalised."""
    return "the recorded sampling masks" if spec.rollout.sampling_mask else "the whole vocabulary"


def placement_title(spec: Spec, plan: Plan) -> str:
    """Returns the placement and the mesh in words."""
    kind = "colocated: ranks and engines take turns" if plan.colocated else "disaggregated"
    elsewhere = "engines elsewhere" if plan.rollout else "no engines"
    elastic = f"; at least {plan.min_engines} of {len(plan.engines)} engines" if plan.min_engines else ""
    return f"{kind if plan.engines else elsewhere}{elastic}; {_mesh(spec)}"


def placement_table(spec: Spec, plan: Plan) -> Table:
    """Returns a table with a row per node and a column per device; equal consecutive nodes share a row."""
    locations = [location for process in _processes(plan) for location in _locations(process)]
    devices = sorted({location.gpu or 0 for location in locations})
    on_gpu = spec.cluster.gpus_per_node > 0
    picture = Table(
        "node",
        *(f"GPU {device}" if on_gpu else "CPU" for device in devices),
        show_lines=True,
    )
    nodes = [[_cell(spec, plan, node, device) for device in devices] for node in range(spec.cluster.nodes)]
    shapes = [(node, tuple(_shape(plan, node, device) for device in devices)) for node in range(len(nodes))]
    for _, members in groupby(shapes, key=lambda node_shape: node_shape[1]):
        numbers = [node for node, _ in members]
        picture.add_row(str(numbers[0]), *nodes[numbers[0]])
        if len(numbers) > 2:
            picture.add_row(f"{numbers[1]}–{numbers[-1]}", "the same as above", *[""] * (len(devices) - 1))
        elif len(numbers) == 2:
            picture.add_row(str(numbers[1]), *nodes[numbers[1]])
    return picture


def groups_table(spec: Spec, plan: Plan) -> Table:
    """Returns a table of the groups of the policy's servers, with the arguments that are a group's own."""
    rows = []
    for group in policy_groups(spec):
        engines = [engine.index for engine in plan.engines if engine.group == group.number]
        numbers = f"{engines[0]}–{engines[-1]}" if len(engines) > 1 else f"{engines[0]}"
        own = spec.engine.groups[group.number].sglang
        arguments = ", ".join(f"{name} = {json.dumps(value)}" for name, value in own.items())
        arguments = arguments or "those of [engine]"
        rows.append((group.number, numbers, group.role, group.section.tensor, arguments))
    columns = ("group", "engines", "role", "tensor", "arguments")
    return table("groups of the policy's servers", columns, rows)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """Returns a table with a title. A narrow terminal folds the keys in it instead of cutting them."""
    titled = Table(title=title, title_justify="left")
    for column in columns:
        titled.add_column(column, overflow="fold")
    for row in rows:
        titled.add_row(*map(str, row))
    return titled


def _mesh(spec: Spec) -> str:
    parallel = spec.trainer.parallel
    degrees = {name: getattr(parallel, name) for name in _SHORT}
    product = " × ".join(f"{name} {degree}" for name, degree in degrees.items() if degree > 1)
    experts = f", experts over {parallel.expert}" if parallel.expert > 1 else ""
    ranks = "1 trainer rank" if parallel.world_size == 1 else f"{parallel.world_size} trainer ranks"
    return f"{ranks}{f' = {product}' if product else ''}{experts}"


def _processes(plan: Plan) -> list[RankPlan | EnginePlan]:
    return [*plan.ranks, *plan.engines, *plan.named_engines]


def _processes_on(plan: Plan, node: int, device: int) -> list[RankPlan | EnginePlan]:
    return [
        process
        for process in _processes(plan)
        if any(spot.node == node and (spot.gpu or 0) == device for spot in _locations(process))
    ]


def _locations(process: RankPlan | EnginePlan) -> tuple[DeviceLocation, ...]:
    return process.locations if isinstance(process, EnginePlan) else (process.location,)


def _shape(plan: Plan, node: int, device: int) -> tuple[str, ...]:
    return tuple(type(process).__name__ for process in _processes_on(plan, node, device))


def _cell(spec: Spec, plan: Plan, node: int, device: int) -> str:
    return "\n".join(
        _line(process, spec, DeviceLocation(node, device)) for process in _processes_on(plan, node, device)
    )


def _line(process: RankPlan | EnginePlan, spec: Spec, here: DeviceLocation) -> str:
    threads = f"\n  {process.threads} threads" if process.location.gpu is None else ""
    if isinstance(process, EnginePlan):
        count = len(process.locations)
        part = f"\n  {process.locations.index(here) + 1} of {count}" if count > 1 else ""
        answers = count == 1 or here == process.location
        port = f"\n  port {process.port}" if process.port is not None and answers else ""
        role = f", {process.role}" if process.role != "regular" else ""
        group = f"\n  group {process.group}{role}" if spec.engine.groups and not process.is_named else ""
        return f"{process.name} {process.index}{group}{part}{port}{threads}"
    parallel = spec.trainer.parallel
    coordinates = [
        f"{_SHORT[name]} {coordinate}"
        for name, coordinate in asdict(process.coordinates).items()
        if getattr(parallel, name) > 1
    ]
    below = f"\n  {' '.join(coordinates)}" if coordinates else ""
    return f"rank {process.rank}{below}{threads}"

"""`rlrun plan`: what a job would do and where, before anything is started."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from rlrun.cli.arguments import AsJson, Overrides, Profiles, Specs, load

if TYPE_CHECKING:
    from rich.table import Table

    from rlrun.runner.plan import Plan
    from rlrun.runner.trainer.layout import Coordinates
    from rlrun.specs.job import Spec


def command(
    specs: Specs, overrides: Overrides = None, profiles: Profiles = None, as_json: AsJson = False
) -> None:
    """Show the batch equation, the placement of every rank and engine, and all that is derived."""
    from rlrun.runner.plan import make_plan

    spec = load(specs, overrides, profiles).spec
    plan = make_plan(spec)
    if as_json:
        print(json.dumps(asdict(plan) | {"optimizer_steps": plan.optimizer_steps}))
        return
    from rich.console import Console

    console = Console(highlight=False)
    for table in (_numbers(spec, plan), _placement(spec, plan)):
        console.print(table)


def _numbers(spec: "Spec", plan: "Plan") -> "Table":
    batch = plan.batch
    rows: list[tuple[object, ...]] = [
        ("prompts a step (P)", batch.prompts, "rollout.batch_size"),
        ("samples a prompt (n)", batch.samples_per_prompt, "rollout.samples_per_prompt"),
        ("samples an optimizer step (G)", batch.global_batch_size, "trainer.global_batch_size"),
        ("optimizer steps a step (S)", batch.optimizer_steps, "trainer.optimizer_steps"),
    ]
    if not plan.engines:
        rows = [
            ("demonstrations an optimizer step (G)", batch.global_batch_size, "trainer.global_batch_size")
        ]
    per_rank = batch.global_batch_size // spec.trainer.parallel.data_degree
    epochs = f"{spec.trainer.epochs} · ⌊rows / {batch.prompts}⌋"
    rows += [
        ("samples of a data rank", per_rank, "G / (fsdp · replicate)"),
        ("steps", epochs if plan.steps is None else plan.steps, "trainer.steps or epochs"),
        ("optimizer steps in all", plan.optimizer_steps or f"{epochs} · S", "steps · S"),
        ("tokens of the longest sample", plan.max_sample_tokens, "prompt + response, evaluation too"),
        ("tokens of a micro-batch", plan.micro_batch_tokens, "trainer.max_tokens_per_rank"),
    ]
    if plan.engines:
        rows.append(("KV cache of an engine, tokens", plan.cache_tokens, "engine.max_cache_tokens"))
    product = f"P·n = {batch.samples} = G·S" if plan.engines else f"G = {batch.global_batch_size}"
    return _table(f"{spec.name}: {product}", ("number", "value", "from"), rows)


def _placement(spec: "Spec", plan: "Plan") -> "Table":
    rows: list[tuple[object, ...]] = [
        (
            f"rank {rank.rank}",
            _device(rank.place.node, rank.place.gpu),
            rank.threads,
            f"data {rank.data_rank}: {_place_in_mesh(rank.coordinates, spec)}",
        )
        for rank in plan.ranks
    ]
    rows += [
        (
            f"engine {engine.index}",
            _device(engine.place.node, engine.place.gpu),
            engine.threads,
            "a free port" if engine.port is None else f"port {engine.port}",
        )
        for engine in plan.engines
    ]
    kind = "colocated: ranks and engines take turns" if plan.colocated else "disaggregated"
    return _table(kind if plan.engines else "no engines", ("process", "device", "threads", "place"), rows)


def _device(node: int, gpu: int | None) -> str:
    return f"node {node}, CPU" if gpu is None else f"node {node}, GPU {gpu}"


def _table(title: str, columns: tuple[str, ...], rows: list[tuple[object, ...]]) -> "Table":
    from rich.table import Table

    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*map(str, row))
    return table


def _place_in_mesh(coordinates: "Coordinates", spec: "Spec") -> str:
    """Pipeline and context are named where there are any."""
    parallel = spec.trainer.parallel
    hidden = {name for name in ("pipeline", "context") if getattr(parallel, name) == 1}
    places = asdict(coordinates).items()
    return ", ".join(f"{name} {place}" for name, place in places if name not in hidden)

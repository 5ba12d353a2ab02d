"""Rules that concern several sections of a spec, and settings that would have no effect.

A rule is a generator of findings over a spec whose sections are each valid. A finding names the keys that
it depends on (`related`): when one of these values is already wrong, the finding is not reported. The rules
that depend on the algorithm are in algorithm_rules.py.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import BaseModel

from rlrun.models.object_store import folder_of
from rlrun.specs.derived.engine_layout import layout_of
from rlrun.specs.derived.engine_sections import POLICY, engine_sections
from rlrun.specs.derived.own_variables import why_own_variable
from rlrun.specs.paths import display_path
from rlrun.specs.problems.codes import Code
from rlrun.specs.problems.findings import Finding
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.sections.job import Spec

Rule = Callable[[Spec], Iterator[Finding]]


def length_of_job(spec: Spec) -> Iterator[Finding]:
    """One of steps and epochs is given."""
    paths = (("trainer", "steps"), ("trainer", "epochs"))
    if spec.trainer.steps is None and spec.trainer.epochs is None:
        yield Finding(
            ("trainer",),
            "needs steps or epochs, found neither",
            "add `steps = …`",
            "steps",
            None,
            False,
            paths,
        )


def ray_address(spec: Spec) -> Iterator[Finding]:
    """A job on several nodes needs the address of a Ray cluster, or a launcher that starts one."""
    if spec.cluster.nodes > 1 and spec.cluster.address is None and spec.submit is None:
        message = f"{spec.cluster.nodes} nodes need cluster.address: without one rlrun only uses this host"
        cure = (
            'start Ray on every node, and add `address = "HOST:6379"`; or add a table [submit] and hand the '
            "job to a scheduler: rlrun submit SPEC (docs/cluster.md)"
        )
        yield Finding(
            ("cluster", "nodes"), message, cure, None, spec.cluster.nodes, related=(("cluster", "address"),)
        )


def unequal_nodes(spec: Spec) -> Iterator[Finding]:
    """A list of the nodes' GPUs has an entry for each node, and the largest is the number that is given."""
    cluster, path = spec.cluster, ("cluster", "node_gpus")
    if cluster.node_gpus is None:
        return
    if len(cluster.node_gpus) != cluster.nodes:
        message = f"has {len(cluster.node_gpus)} nodes, and cluster.nodes is {cluster.nodes}"
        cure = f"set cluster.nodes = {len(cluster.node_gpus)}, or add the others"
        yield Finding(path, message, cure, related=(("cluster", "nodes"),))
    if max(cluster.node_gpus) != cluster.gpus_per_node:
        largest = max(cluster.node_gpus)
        message = f"the largest node has {largest} GPUs, and cluster.gpus_per_node is {cluster.gpus_per_node}"
        cure = f"set cluster.gpus_per_node = {largest}"
        yield Finding(path, message, cure, related=(("cluster", "gpus_per_node"),))


def mirror_folder(spec: Spec) -> Iterator[Finding]:
    """A mirror in a folder is not the run's own folder, nor in it."""
    folder = None if spec.checkpoint.mirror is None else folder_of(spec.checkpoint.mirror)
    run = Path(spec.runs_dir, spec.name).absolute()
    if folder is not None and (folder / spec.name).resolve().is_relative_to(run.resolve()):
        message = f"the mirror would be in the folder of the run itself, {display_path(run)}"
        cure = "name a folder outside of runs_dir"
        yield Finding(("checkpoint", "mirror"), message, cure, related=(("runs_dir",), ("name",)))


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def environment(spec: Spec) -> Iterator[Finding]:
    """Variables of the processes have valid names, and are not those that rlrun sets itself."""
    for name in spec.cluster.environment:
        path: KeyPath = ("cluster", "environment", name)
        if not _VARIABLE.fullmatch(name):
            yield Finding(path, f"{name!r} is not the name of an environment variable", "correct it")
        elif (why := why_own_variable(name)) is not None:
            yield Finding(path, f"{name} cannot be set here: {why}", "remove it")


def evaluation(spec: Spec) -> Iterator[Finding]:
    """Evaluations have datasets with distinct names, and do not repeat a greedy sample."""
    names = [dataset.name for dataset in spec.eval.datasets]
    for number, dataset in enumerate(spec.eval.datasets):
        path: KeyPath = ("eval", "datasets", number)
        if dataset.name in names[:number]:
            message = f'the name "{dataset.name}" is used by two datasets, whose metrics would mix'
            yield Finding((*path, "name"), message, "choose another name", found=dataset.name)
        temperature = _first(
            dataset.given("temperature"), spec.eval.given("temperature"), spec.rollout.temperature
        )
        samples = _first(
            dataset.given("samples_per_prompt"),
            spec.eval.given("samples_per_prompt"),
            spec.rollout.samples_per_prompt,
        )
        if temperature == 0 and samples > 1:
            table = path if is_given(dataset, "temperature") else ("eval",)
            message = f"0 is greedy sampling: all {samples:g} samples of a prompt would be the same"
            related = (("rollout", "samples_per_prompt"), ("eval", "samples_per_prompt"))
            yield Finding((*table, "temperature"), message, "add `samples_per_prompt = 1`", related=related)


def best_metric(spec: Spec) -> Iterator[Finding]:
    """The metric whose best evaluation is kept is one of a dataset of `[eval]`."""
    metric = spec.checkpoint.keep_best
    names = [dataset.name for dataset in spec.eval.datasets]
    if metric is None or any(metric.startswith(f"eval/{name}/") for name in names):
        return
    path: KeyPath = ("checkpoint", "keep_best")
    if names:
        known = " or ".join(f'"eval/{name}/reward"' for name in names)
        message = f"must be a metric of an evaluation, found {metric!r}"
        yield Finding(path, message, f"write {known}", found=metric, related=(("eval", "datasets"),))
    else:
        message = "there is nothing to evaluate on: the spec has no [[eval.datasets]]"
        yield Finding(path, message, "add a table with a name, a type and a path", found=metric)


def ports(spec: Spec) -> Iterator[Finding]:
    """The ports of all engines are valid: they are counted up from the port of each table of engines."""
    for path, section in engine_sections(spec):
        engines = section.count or (_num_engines(spec) if path == POLICY else 1)
        highest = 65536 - engines
        if section.port is not None and section.port > highest:
            message = (
                f"must be at most {highest} for {engines} engines, whose ports are counted up from it, "
                f"found {section.port}"
            )
            related: tuple[KeyPath, ...] = ((*path, "count"), ("cluster",), ("trainer", "parallel"))
            yield Finding(
                (*path, "port"), message, f"set at most {highest}", found=section.port, related=related
            )


def _num_engines(spec: Spec) -> int:
    """Returns how many of the policy's engines the plan starts where `engine.count` is not set."""
    try:
        return max(1, layout_of(spec, rollout=True).engines)
    except ValueError:
        return 1  # another rule reports the layout


def debug(spec: Spec) -> Iterator[Finding]:
    """The debug mode that trains on saved samples is given some, and the one that evaluates has datasets."""
    if spec.debug.mode == "train" and spec.debug.rollouts is None:
        cure = 'add `rollouts = "runs/…"`, the folder of a run with debug.save_rollouts'
        message = '"train" needs saved samples (debug.rollouts)'
        yield Finding(("debug", "mode"), message, cure, "rollouts", "train")
    if spec.debug.mode == "eval" and not spec.eval.datasets:
        message = "there is nothing to evaluate on: the spec has no [[eval.datasets]]"
        yield Finding(("debug", "mode"), message, "add a table with a name, a type and a path", found="eval")


def profile(spec: Spec) -> Iterator[Finding]:
    """The steps that are recorded take place."""
    last = spec.debug.step or spec.trainer.steps
    late = [step for step in spec.debug.profile.steps if last is not None and step > last]
    if late:
        message = f"step {late[0]} never comes: the run has {last} steps"
        path = ("debug", "profile", "steps")
        yield Finding(path, message, f"name steps from 1 to {last}", found=late[0])


def trackers(spec: Spec) -> Iterator[Finding]:
    """Each tracker is listed once."""
    types = [tracker.type for tracker in spec.trackers]
    for number, name in enumerate(types):
        if name in types[:number]:
            message = f'"{name}" is listed twice, and would receive every metric twice'
            yield Finding(("trackers", number, "type"), message, "remove one of the two", found=name)


RULES: tuple[Rule, ...] = (
    length_of_job,
    ray_address,
    unequal_nodes,
    mirror_folder,
    environment,
    evaluation,
    best_metric,
    ports,
    debug,
    profile,
    trackers,
)


def is_given(section: BaseModel, name: str) -> bool:
    """Returns whether the spec gives this key, rather than leaving it at its default."""
    return name in section.model_fields_set


def no_effect(path: KeyPath, why: str, cure: str, related: tuple[KeyPath, ...] = ()) -> Finding:
    """Returns the finding about a setting that would have no effect."""
    message = f"has no effect: {why}"
    return Finding(path, message, cure, at_value=False, related=related, code=Code.NO_EFFECT)


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)

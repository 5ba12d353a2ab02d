"""Rules that no section can check alone, and options that would have no effect.

A rule is a generator of findings over a spec whose sections are each valid. A finding names the keys that
take part, so that a rule about a value that is already wrong stays silent. Rules that depend on the
algorithm: algorithm_rules.py.
"""

from collections.abc import Callable, Iterator

from pydantic import BaseModel

from rlrun.specs.job import Spec
from rlrun.specs.positions import KeyPath
from rlrun.specs.problems import Finding

Rule = Callable[[Spec], Iterator[Finding]]


def length_of_job(spec: Spec) -> Iterator[Finding]:
    """Exactly one of steps and epochs."""
    both = (("trainer", "steps"), ("trainer", "epochs"))
    if spec.trainer.steps is None and spec.trainer.epochs is None:
        yield Finding(
            ("trainer",), "neither steps nor epochs is given", "add `steps = …`", "steps", None, False, both
        )
    elif spec.trainer.steps is not None and spec.trainer.epochs is not None:
        yield Finding(both[1], "steps and epochs are both given", "keep one of them", None, None, False, both)


def address(spec: Spec) -> Iterator[Finding]:
    """More nodes than this one need a cluster to join."""
    if spec.cluster.nodes > 1 and spec.cluster.address is None:
        message = (
            f"{spec.cluster.nodes} nodes need a Ray cluster; without an address rlrun uses this host alone"
        )
        cure = 'start Ray on every node, then `address = "HOST:6379"`'
        yield Finding(
            ("cluster", "nodes"), message, cure, None, spec.cluster.nodes, others=(("cluster", "address"),)
        )


def evaluation(spec: Spec) -> Iterator[Finding]:
    """Evaluations that evaluate something, under names of their own, and no greedy sample twice."""
    if spec.eval.model_fields_set - {"datasets"} and not spec.eval.datasets:
        cure = "add a table [[eval.datasets]], or remove [eval]"
        yield no_effect(("eval",), "there is no dataset to evaluate on", cure)
    names = [dataset.name for dataset in spec.eval.datasets]
    for number, dataset in enumerate(spec.eval.datasets):
        path: KeyPath = ("eval", "datasets", number)
        if dataset.name in names[:number]:
            message = f'two datasets are named "{dataset.name}", so their metrics would mix'
            yield Finding((*path, "name"), message, "give each its own name", found=dataset.name)
        temperature = _first(dataset.temperature, spec.eval.temperature, spec.rollout.temperature)
        samples = _first(
            dataset.samples_per_prompt, spec.eval.samples_per_prompt, spec.rollout.samples_per_prompt
        )
        if temperature == 0 and samples > 1:
            home = path if dataset.temperature is not None else ("eval",)
            message = f"temperature 0 is greedy: all {samples:g} samples of a prompt would be the same"
            others = (("rollout", "samples_per_prompt"), ("eval", "samples_per_prompt"))
            yield Finding((*home, "temperature"), message, "add `samples_per_prompt = 1`", others=others)


def model_revision(spec: Spec) -> Iterator[Finding]:
    """Only models on the hub have revisions."""
    if spec.model.revision is not None and spec.model.path.startswith("/"):
        why = f"{spec.model.path} is a folder, not an id on the hub"
        yield no_effect(("model", "revision"), why, "remove it", (("model", "path"),))


def kept_checkpoints(spec: Spec) -> Iterator[Finding]:
    """With one checkpoint there is nothing to choose from, and nothing goes on beside it."""
    if given(spec.checkpoint, "keep") and spec.checkpoint.interval is None:
        why = "without an interval the only checkpoint is the one at the end"
        yield no_effect(("checkpoint", "keep"), why, "remove it, or add `interval = …`")
    if spec.checkpoint.asynchronous and spec.checkpoint.interval is None:
        why = "without an interval the only checkpoint is the one at the end, where nothing goes on"
        yield no_effect(("checkpoint", "asynchronous"), why, "remove it, or add `interval = …`")


def ports(spec: Spec) -> Iterator[Finding]:
    """Every engine's port exists."""
    engines = spec.engine.count or 1
    if spec.engine.port is not None and spec.engine.port + engines - 1 > 65535:
        message = (
            f"engine {engines - 1} would listen on port {spec.engine.port + engines - 1}; the last is 65535"
        )
        others = (("engine", "count"),)
        yield Finding(
            ("engine", "port"), message, f"at most {65536 - engines}", found=spec.engine.port, others=others
        )


def debug(spec: Spec) -> Iterator[Finding]:
    """Saved samples where they are trained on, and nowhere else."""
    mode: tuple[KeyPath, ...] = (("debug", "mode"),)
    if spec.debug.mode == "train":
        if spec.debug.rollouts is None:
            cure = 'add `rollouts = "runs/…"`, the folder of a run with debug.save_rollouts'
            yield Finding(mode[0], "there are no samples to train on", cure, "rollouts", "train")
        return
    for key in ("rollouts", "step"):
        if given(spec.debug, key):
            why = 'only mode = "train" trains on saved samples'
            yield no_effect(("debug", key), why, "remove it, or set the mode", mode)


def trackers(spec: Spec) -> Iterator[Finding]:
    """Each sink once."""
    types = [tracker.type for tracker in spec.trackers]
    for number, name in enumerate(types):
        if name in types[:number]:
            message = f'"{name}" is listed twice and would get every metric twice'
            yield Finding(("trackers", number, "type"), message, "remove one", found=name)


RULES: tuple[Rule, ...] = (
    length_of_job,
    address,
    evaluation,
    model_revision,
    kept_checkpoints,
    ports,
    debug,
    trackers,
)


def given(section: BaseModel, name: str) -> bool:
    """Whether the spec gives this key, rather than leaving it at its default."""
    return name in section.model_fields_set


def no_effect(path: KeyPath, why: str, cure: str, others: tuple[KeyPath, ...] = ()) -> Finding:
    """A setting that nothing would read."""
    return Finding(path, f"has no effect: {why}", cure, at_value=False, others=others)


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)

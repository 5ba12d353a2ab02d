"""Translates slime's flags about a run's records: checkpoints, trackers and its name."""

from rlrun.converters.imports.spec_draft import plain_name
from rlrun.converters.slime.draft import Draft
from rlrun.converters.slime.flag_table import flag_table
from rlrun.converters.slime.optimizer_flags import is_stateless


def checkpoints(draft: Draft) -> None:
    """Sets the number of steps between checkpoints, and keeps all of them as slime does."""
    interval = next(iter(draft.given("--save-interval")), None)
    steps = draft.whole("--save-interval", 1) * (draft.updates if draft.algorithm == "sft" else 1)
    if interval:
        draft.set("checkpoint.interval", steps, (interval.name,))
        draft.set("checkpoint.keep", "all", (), "slime deletes no checkpoint")
    for flag in draft.given("--no-save-optim"):
        if is_stateless(draft):
            draft.note(flag, "no effect: --use-stateless-adam has no state to save")
        else:
            draft.set("checkpoint.optimizer", False, (flag.name,))
    for flag in draft.given("--save-hf"):
        if interval:
            draft.set("checkpoint.export_interval", steps, (flag.name,))
        else:
            draft.note(flag, "no effect without --save-interval")
    for flag in draft.given("--async-save"):
        if interval:
            draft.set("checkpoint.asynchronous", True, (flag.name,))
        else:
            draft.note(flag, "no effect without --save-interval")


def trackers(draft: Draft) -> None:
    """Sets the trackers: TensorBoard, Weights & Biases, or both."""
    number = 0
    if "--use-tensorboard" in draft.flags:
        draft.set("trackers.0.type", "tensorboard", ("--use-tensorboard",))
        number = 1
    settings = draft.given("--wandb-project", "--wandb-team", "--wandb-group", "--wandb-mode")
    if "--use-wandb" not in draft.flags or draft.text("--wandb-mode") == "disabled":
        for flag in [*settings, *draft.given("--use-wandb")]:
            draft.note(flag, "no effect: W&B is off")
        return
    draft.set(f"trackers.{number}.type", "wandb", ("--use-wandb",))
    for flag in settings:
        key = (flag_table()[flag.name].key or "").rpartition(".")[2]
        if flag.values:
            draft.set(f"trackers.{number}.{key}", draft.text(flag.name), (flag.name,))
        else:
            draft.note(flag, "takes one value, found 0")


def run_name(draft: Draft) -> None:
    """Sets the run's name, as a valid name of a folder."""
    for flag in draft.given("--tb-experiment-name"):
        name = plain_name(draft.text(flag.name) or "")
        if name:
            draft.set("name", name, (flag.name,))
        else:
            draft.note(flag, "the value cannot be the name of a folder")

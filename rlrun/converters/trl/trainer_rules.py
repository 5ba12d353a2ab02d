"""Translates TRL's settings about the model, the optimizer, adapters, checkpoints and trackers."""

import math
from typing import Any

from rlrun.converters.imports.import_draft import ImportDraft, name_after_file
from rlrun.converters.imports.spec_draft import plain_name
from rlrun.converters.trl.batch_rules import optimizer_steps

_OPTIMIZERS = {
    **dict.fromkeys(("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused"), "adamw"),
    **dict.fromkeys(("adamw_8bit", "adamw_bnb_8bit", "adamw_torch_8bit"), "adamw_8bit"),
    **dict.fromkeys(("paged_adamw_8bit", "paged_adamw"), "adamw_8bit"),
    "paged_adamw_32bit": "adamw",
    "sgd": "sgd",
}
_SCHEDULES = {
    "linear": "linear",
    "cosine": "cosine",
    "constant": "constant",
    "constant_with_warmup": "constant",
    "cosine_with_min_lr": "cosine",
    "warmup_stable_decay": "wsd",
}
_WITH_LOWEST = ("cosine_with_min_lr", "warmup_stable_decay")
_TRACKERS = ("wandb", "tensorboard", "trackio", "mlflow")


def run_name(draft: ImportDraft) -> None:
    """Sets the name of the run, and of its folder."""
    for name in ("run_name", "output_dir"):
        folder = str(draft.value(name) or "").rstrip("/").rpartition("/")[2]
        if (plain := plain_name(folder)) and not draft.has("name"):
            draft.put("name", plain, name)
    if not draft.has("name"):
        name_after_file(draft)
    draft.drop_unused("outputs are written to the run's folder, under `runs_dir`", "output_dir")


def model(draft: ImportDraft) -> None:
    """Sets the policy, and the arguments of its chat template."""
    names = [name for name in ("model", "model_name_or_path") if draft.value(name)]
    if names:
        draft.put("model.path", str(draft.value(names[0])), names[0])
    else:
        draft.set("model.path", "MODEL", (), "not in the file: a Hugging Face id or folder")
        draft.notes.append("model.path: the model cannot be read from the file: fill it in")
    for name in [name for name in draft.settings if name.startswith("chat_template_kwargs.")]:
        value = draft.value(name)
        if isinstance(value, bool | int | float | str):
            draft.put(f"model.chat_template_args.{name.partition('.')[2]}", value, name)
        else:
            draft.drop("set model.chat_template_args by hand", name)


def optimizer(draft: ImportDraft) -> None:
    """Sets the optimizer and its moments."""
    kind = str(draft.value("optim"))
    if kind in _OPTIMIZERS:
        draft.put_given("trainer.optimizer", _OPTIMIZERS[kind], "optim")
    else:
        draft.drop("has no counterpart: AdamW is used (docs/spec/trainer.md)", "optim")
    if _OPTIMIZERS.get(kind) == "sgd":
        draft.set("trainer.momentum", 0.0, (), "torch's default")
        draft.drop("no effect: SGD has no such setting", "adam_beta1", "adam_beta2")
    else:
        betas = [draft.number("adam_beta1"), draft.number("adam_beta2")]
        draft.put("trainer.betas", betas, "adam_beta1", "adam_beta2")
    norm = draft.number("max_grad_norm")
    if norm > 0:
        draft.put_given("trainer.max_grad_norm", norm, "max_grad_norm")
    else:
        draft.put("trainer.max_grad_norm", 1e9, "max_grad_norm", comment="gradients are not clipped")


def schedule(draft: ImportDraft) -> None:
    """Sets the schedule of the learning rate; TRL's default decays linearly."""
    kind = str(draft.value("lr_scheduler_type")).rpartition(".")[2].lower()
    if kind in _SCHEDULES:
        draft.put("trainer.schedule", _SCHEDULES[kind], "lr_scheduler_type")
    else:
        draft.drop(f"has no counterpart (available: {', '.join(_SCHEDULES)})", "lr_scheduler_type")
    _schedule_arguments(draft, kind)
    warmup = draft.number("warmup_steps")
    share = draft.number("warmup_ratio") if draft.value("warmup_ratio") is not None else 0.0
    if warmup >= 1:
        draft.put("trainer.warmup_steps", int(warmup), "warmup_steps")
        draft.drop("no effect: warmup_steps takes precedence", "warmup_ratio")
    elif warmup > 0 or 0 < share < 1:
        name = "warmup_steps" if warmup > 0 else "warmup_ratio"
        draft.put("trainer.warmup_ratio", warmup if warmup > 0 else share, name)


def _schedule_arguments(draft: ImportDraft, kind: str) -> None:
    """Sets the lowest learning rate and the length of the decay."""
    rate = draft.number("learning_rate")
    for name in [name for name in draft.settings if name.startswith("lr_scheduler_kwargs.")]:
        argument, value = name.partition(".")[2], draft.value(name)
        value = value if isinstance(value, int | float) else -1
        if argument == "min_lr" and kind == "cosine_with_min_lr" and 0 <= value <= rate and rate > 0:
            draft.put(
                "trainer.min_lr_ratio", float(f"{value / rate:.6g}"), name, comment="min_lr / learning_rate"
            )
        elif argument in ("min_lr_rate", "min_lr_ratio") and kind in _WITH_LOWEST and 0 <= value <= 1:
            draft.put("trainer.min_lr_ratio", value, name)
        elif argument == "num_decay_steps" and kind == "warmup_stable_decay" and value >= 1:
            draft.put("trainer.decay_steps", int(value), name)
        else:
            draft.drop("an argument of TRL's schedule that has no counterpart", name)


def precision(draft: ImportDraft) -> None:
    """Notes the precision: parameters are float32 and products bfloat16 on GPUs in rlrun."""
    draft.drop("float16 has no counterpart: products are in bfloat16 on GPUs", "fp16")
    if draft.value("bf16") is False:
        draft.put("trainer.dtype", "float32", "bf16")
    draft.drop_unused("what rlrun does on GPUs: parameters in float32, products in bfloat16", "bf16")


def lora(draft: ImportDraft) -> None:
    """Sets the adapters, given by a LoraConfig or by the flags of ModelConfig."""
    flags = ("use_peft", "lora_r", "lora_alpha", "lora_target_modules", "use_rslora", "lora_dropout")
    if draft.given("peft_config"):
        _adapters(draft, "peft_config.r", "peft_config.", "peft_config")
        draft.drop("no effect: peft_config has the adapters", *flags)
    elif draft.is_on("use_peft"):
        _adapters(draft, "lora_r", "lora_", "use_peft")
    else:
        draft.drop("no effect without peft_config or use_peft", *flags)
    for name, base in (("load_in_4bit", "nf4"), ("load_in_8bit", "int8")):
        if not draft.is_on(name):
            continue
        if draft.has("trainer.lora.base"):
            draft.drop("no effect: load_in_4bit takes precedence", name)
        elif "lora" in draft.values.get("trainer", {}):
            draft.put("trainer.lora.base", base, name, "quantization_config")
        else:
            draft.drop("only adapters train on a quantised model: `[trainer.lora]`", name)
    draft.drop("rlrun quantises the frozen model itself: trainer.lora.base", "quantization_config")


def _adapters(draft: ImportDraft, rank: str, prefix: str, switch: str) -> None:
    dotted = prefix.endswith(".")
    alpha, targets, dropout, rslora = (
        (
            "peft_config.lora_alpha",
            "peft_config.target_modules",
            "peft_config.lora_dropout",
            "peft_config.use_rslora",
        )
        if dotted
        else ("lora_alpha", "lora_target_modules", "lora_dropout", "use_rslora")
    )
    draft.put("trainer.lora.rank", draft.count(rank), rank, switch)
    draft.put("trainer.lora.alpha", draft.number(alpha), alpha)
    names = draft.value(targets)
    names = [names] if isinstance(names, str) else names
    if isinstance(names, list) and names and names != ["all-linear"]:
        draft.put("trainer.lora.targets", [str(name) for name in names], targets)
    elif names is None:
        comment = "peft chooses by the model, usually the projections of queries and values"
        draft.set("trainer.lora.targets", ["q_proj", "v_proj"], (), comment)
    draft.drop_unused("all matrices of attention and feed-forward: rlrun's default", targets)
    if draft.is_on(rslora):
        draft.put("trainer.lora.rslora", True, rslora)
    draft.drop("rlrun applies no dropout", dropout)


def interval(draft: ImportDraft, name: str) -> int | None:
    """Returns a number of TRL's optimizer steps in rlrun's steps; None for a share of all steps."""
    number = draft.number(name)
    return math.ceil(number / optimizer_steps(draft)) if number >= 1 else None


def checkpoints(draft: ImportDraft) -> None:
    """Sets how often checkpoints are written."""
    names = ("save_strategy", "save_steps", "save_total_limit")
    if draft.value("save_strategy") != "steps":
        draft.drop("a checkpoint is written at the end; `checkpoint.interval` counts steps", "save_strategy")
        draft.drop("no effect without save_strategy = steps", *names[1:])
    elif draft.given(*names):
        if (steps := interval(draft, "save_steps")) is not None:
            draft.put("checkpoint.interval", steps, "save_steps", "save_strategy")
            keep = draft.value("save_total_limit")
            draft.put(
                "checkpoint.keep", draft.count("save_total_limit") if keep else "all", "save_total_limit"
            )
        else:
            draft.drop("a share of all steps: set checkpoint.interval", *names)


def trackers(draft: ImportDraft) -> None:
    """Sets the trackers."""
    value: Any = draft.value("report_to")
    kinds = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    known = [str(kind) for kind in kinds if kind in _TRACKERS]
    for number, kind in enumerate(known):
        draft.put(f"trackers.{number}.type", kind, "report_to")
        if kind in ("wandb", "trackio") and draft.given("project"):
            draft.put(f"trackers.{number}.project", str(draft.value("project")), "project")
        if kind == "trackio" and draft.value("trackio_space_id"):
            draft.put(f"trackers.{number}.space", str(draft.value("trackio_space_id")), "trackio_space_id")
    if len(known) < len(kinds) or not kinds:
        draft.drop(
            f"metrics are always written to the run's folder; trackers: {', '.join(_TRACKERS)}", "report_to"
        )

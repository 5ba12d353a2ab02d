"""Translates TRL's settings about batches, steps, lengths and devices."""

import math

from rlrun.converters.imports.import_draft import ImportDraft

_BATCH = ("per_device_train_batch_size", "gradient_accumulation_steps")


def processes(draft: ImportDraft) -> int:
    """Returns the number of trainer processes, of which TRL has one per GPU."""
    return draft.gpus or 1


def samples_per_optimizer_step(draft: ImportDraft) -> int:
    """Returns G: the samples of all processes and micro-steps of an optimizer step."""
    return processes(draft) * draft.count(_BATCH[0]) * draft.count(_BATCH[1])


def samples_per_generation(draft: ImportDraft) -> int:
    """Returns P·n: the samples that TRL generates together."""
    if draft.value("generation_batch_size") is not None:
        return draft.count("generation_batch_size")
    steps = draft.count("steps_per_generation", draft.count(_BATCH[1]))
    return processes(draft) * draft.count(_BATCH[0]) * steps


def optimizer_steps(draft: ImportDraft) -> int:
    """Returns S: the optimizer steps per generation, if samples are trained on once."""
    return max(1, samples_per_generation(draft) // samples_per_optimizer_step(draft))


def batches(draft: ImportDraft) -> None:
    """Sets P, n and G; P·n = G·S (docs/coming-from.md)."""
    samples, group = samples_per_generation(draft), draft.count("num_generations")
    update = samples_per_optimizer_step(draft)
    names = ("generation_batch_size", "steps_per_generation", *_BATCH)
    if samples % update:
        draft.notes.append(
            f"TRL generates {samples} samples at a time and updates the policy every {update}: rlrun "
            f"generates whole optimizer steps, so {math.ceil(samples / update) * update}"
        )
        samples = math.ceil(samples / update) * update
    prompts = max(1, samples // group)
    if samples % group:
        draft.notes.append(f"{samples} samples are not whole groups of {group}, which TRL refuses too")
    draft.put("rollout.batch_size", prompts, *names, comment=f"{samples} samples / num_generations {group}")
    draft.put("rollout.samples_per_prompt", group, "num_generations")
    if samples == update:
        comment = "one optimizer step per generation"
    else:
        comment = f"{samples // update} optimizer steps per generation"
    draft.put("trainer.global_batch_size", min(update, prompts * group), *_BATCH, comment=comment)
    if draft.gpus is None:
        draft.notes.append(
            "the number of GPUs is unknown: per_device_train_batch_size counts for one; say --gpus N"
        )
    if draft.count("num_iterations") > 1:
        draft.drop("samples are trained on once in rlrun: use more optimizer steps", "num_iterations")


def steps(draft: ImportDraft) -> None:
    """Sets the number of steps, which TRL counts in optimizer steps, or of epochs."""
    if draft.number("max_steps") > 0:
        updates = optimizer_steps(draft) * draft.count("num_iterations")
        total = math.ceil(draft.number("max_steps") / updates)
        comment = f"optimizer steps, {updates} per step" if updates > 1 else ""
        draft.put("trainer.steps", total, "max_steps", comment=comment)
        draft.drop("no effect: max_steps takes precedence", "num_train_epochs")
        return
    epochs = draft.number("num_train_epochs")
    comment = f"{epochs:g} epochs, rounded up" if epochs != int(epochs) else ""
    draft.put("trainer.epochs", max(1, math.ceil(epochs)), "num_train_epochs", comment=comment)


def devices(draft: ImportDraft) -> None:
    """Sets the GPUs, and which of them the engines use."""
    gpus = processes(draft)
    draft.set("cluster.gpus_per_node", gpus, (), "one process per GPU" if draft.gpus else "assumed: --gpus N")
    if gpus > 1:
        draft.set("trainer.parallel.fsdp", gpus, (), "the result does not depend on the layout")
    if (size := draft.count("vllm_tensor_parallel_size")) > 1:
        draft.put("engine.tensor", size, "vllm_tensor_parallel_size")
    is_server = draft.is_on("use_vllm") and draft.value("vllm_mode") == "server"
    if is_server:
        draft.put("cluster.placement", "disaggregated", "vllm_mode")
        draft.set(
            "cluster.gpus_per_node", gpus + 1, (), "with one for the engines: `trl vllm-serve` has its own"
        )
        draft.notes.append(
            "cluster.gpus_per_node: add the GPUs of TRL's vLLM server, which the script does not say"
        )
    else:
        draft.put_given("cluster.placement", "colocated", "vllm_mode", "use_vllm")
    draft.drop_unused("rlrun's engines take the place of vLLM (docs/engines.md)", "use_vllm")


def lengths(draft: ImportDraft) -> None:
    """Sets the longest prompt from the context of vLLM."""
    longest, response = draft.value("vllm_max_model_length"), draft.count("max_completion_length")
    if longest is None or draft.has("rollout.max_prompt_tokens"):
        return
    room = draft.count("vllm_max_model_length") - response
    if room > 0:
        comment = "minus max_completion_length"
        draft.put("rollout.max_prompt_tokens", room, "vllm_max_model_length", comment=comment)
    else:
        draft.drop("leaves no room for a prompt: set rollout.max_prompt_tokens", "vllm_max_model_length")


def sampling(draft: ImportDraft) -> None:
    """Sets the number of likeliest tokens; TRL's 0 means no limit."""
    limit = int(draft.number("top_k"))
    draft.put_given("rollout.top_k", limit if limit > 0 else -1, "top_k")

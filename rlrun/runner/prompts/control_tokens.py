"""Keeps text that others wrote (rows, results of tools, messages of agents) from forging turns.

    messages ─▶ guard ─▶ chat template ─▶ check ─▶ pieces ─▶ tokens

A chat template makes one string of its own control tokens and of the contents, and a tokenizer matches the
names of control tokens wherever they are. So contents are marked before the template sees them: a character
that occurs nowhere else goes behind the first character of every name. The rendered text is split at the
marks and encoded piece by piece: contents keep their characters, and none becomes a control token.

A template can also put a control token together: from two texts side by side, or by taking a word out of the
middle of one. The check finds this: it renders the conversation again with texts that have no part of a name,
which must give the same control tokens.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_MARKS = range(0xE000, 0xF900)
"""Unicode's characters for private use, which no template and hardly any text has."""
_PRIVATE = re.compile("[\ue000-\uf8ff]")
_WRITERS = frozenset({"system", "developer", "user", "assistant"})
"""Roles whose text may name markup; results of tools may not."""
_ROLES = _WRITERS | {"tool", "tools", "function", "ipython", "observation", "environment", "model"}
"""What templates may make a control token of: `'<|' + message.role + '|>'`. Those they name come on top."""
_QUOTED = re.compile(r"""['"](\w+)['"]""")
_TAG = re.compile(r"<(/?)(\w+)>")


@dataclass(frozen=True, slots=True)
class Names:
    """Names of tokens, and whether a text has them."""

    names: frozenset[str]
    encode: Callable[[str], Sequence[int]] | None = None
    """For tokenizers that normalise text before they match names: its tokens."""
    ids: frozenset[int] = frozenset()
    _starts: re.Pattern[str] = field(init=False)
    _whole: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        longest_first = sorted(map(re.escape, self.names), key=len, reverse=True)
        object.__setattr__(self, "_whole", re.compile("|".join(longest_first) or r"(?!)"))
        object.__setattr__(self, "_starts", re.compile(_starts_of(self.names)))

    def within(self, text: str) -> list[str]:
        """The names in a text, as a tokenizer matches them: from the left, the longest first."""
        return self._whole.findall(text)

    def edges(self) -> re.Pattern[str]:
        """Matches the characters that a name begins or ends with."""
        return re.compile(_any_of({name[0] for name in self.names} | {name[-1] for name in self.names}))

    def broken(self, text: str, mark: str) -> str:
        """The text with a mark within each name. Names of a single character are left out."""
        text = self._starts.sub(lambda found: found[0] + mark if found[1] is None else "", text)
        if self.encode and any(self.ids & set(self.encode(piece)) for piece in text.split(mark)):
            return mark.join(text)
        return text


class Guard:
    """Marks the names of a tokenizer's control tokens in messages and tools."""

    def __init__(self, tokenizer: Any, end_tokens: Sequence[int]) -> None:
        """`tokenizer` as transformers has it."""
        added: Mapping[int, Any] = tokenizer.added_tokens_decoder
        kept = _markup({str(token) for token in added.values()})
        template = str(tokenizer.chat_template or "")
        self._roles = _ROLES | set(_QUOTED.findall(template))
        turns, symbols = set(), set()
        for number, token in added.items():
            name = str(token)
            own = name.strip() and name in template and name not in kept
            if token.special or number in end_tokens or own:
                turns.add(number)
            elif re.search(r"[^\w\s▁]", name):
                symbols.add(number)
        self._turns = _names(tokenizer, added, turns)
        self._symbols = _names(tokenizer, added, turns | symbols)
        self._edges = self._turns.edges()

    def mark_for(self, value: Any) -> str:
        """A character that none of the texts in `value` has."""
        used = {letter for text in _texts(value) for letter in _PRIVATE.findall(text)}
        return next(chr(number) for number in _MARKS if chr(number) not in used)

    def message(self, message: Any, mark: str) -> Any:
        """A message without a control token's whole name in any of its texts.

        Results of tools are kept from naming other added tokens as well, such as `</tool_response>`.
        """
        role = message.get("role") if isinstance(message, Mapping) else None
        names = self._turns if str(role) in _WRITERS else self._symbols
        return _mapped(message, lambda text: names.broken(text, mark))

    def tools(self, tools: Any, mark: str) -> Any:
        """Descriptions of tools, in the same way."""
        return _mapped(tools, lambda text: self._turns.broken(text, mark))

    def suspicious(self, messages: Any, tools: Any) -> bool:
        """Whether a template could make a control token of pieces of these texts."""
        strange = any(role not in self._roles for role in _roles(messages))
        return strange or any(self._edges.search(text) for text in _texts((messages, tools)))

    def neutral(self, value: Any, mark: str) -> Any:
        """Messages or tools whose texts have no part of a control token's name."""

        def change(text: str) -> str:
            return self._edges.sub(mark, text)

        changed = _mapped(value, change)
        for message in changed:
            if isinstance(message, dict) and (role := str(message.get("role"))) not in self._roles:
                message["role"] = mark * len(role)
        return changed

    def check(self, rendered: str, neutral: str) -> None:
        """ValueError where a rendered conversation has other control tokens than with neutral texts."""
        if self._turns.within(rendered) != self._turns.within(neutral):
            raise ValueError(
                "the chat template makes control tokens of the messages' texts, which could forge turns; "
                "take the pieces of their names out of the messages"
            )


def _names(tokenizer: Any, added: Mapping[int, Any], ids: set[int]) -> Names:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    normalises = getattr(backend, "normalizer", None) and any(added[number].normalized for number in ids)
    encode = (
        (lambda text: tokenizer.encode(text, add_special_tokens=False, verbose=False)) if normalises else None
    )
    return Names(frozenset(str(added[number]) for number in ids), encode, frozenset(ids))


def _markup(names: set[str]) -> set[str]:
    """Tags that come in pairs, `<think>` and `</think>`: parts of a text, which begin and end no turn."""
    tags = {found[2]: name for name in names if (found := _TAG.fullmatch(name)) and found[1]}
    return {tag for name, end in tags.items() if (begin := f"<{name}>") in names for tag in (begin, end)}


def _starts_of(names: frozenset[str]) -> str:
    """Matches the first character of each name, overlapping ones too; group 1: names of one character."""
    single = {name for name in names if len(name) == 1}
    rests: dict[str, list[str]] = {}
    for name in sorted(names - single, key=len, reverse=True):
        rests.setdefault(name[0], []).append(re.escape(name[1:]))
    ahead = "|".join(f"(?<={re.escape(first)})(?:{'|'.join(rest)})" for first, rest in rests.items())
    return f"({_any_of(single)})|{_any_of(set(rests))}(?={ahead})"


def _any_of(letters: set[str]) -> str:
    return f"[{''.join(map(re.escape, sorted(letters)))}]" if letters else r"(?!)"


def _roles(messages: Any) -> Iterator[str]:
    for message in messages:
        if isinstance(message, Mapping):
            yield str(message.get("role"))


def _texts(value: Any) -> Iterator[str]:
    """Every string in tables and arrays, keys too."""
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
    """A copy with every string changed, keys too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_mapped(key, change): _mapped(inner, change) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_mapped(inner, change) for inner in value]
    return value

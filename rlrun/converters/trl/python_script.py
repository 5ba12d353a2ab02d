"""Reads the settings of a Python script that calls GRPOTrainer. The script is parsed, never executed.

    GRPOConfig(learning_rate=LR, …)      -> the setting learning_rate, where LR is a constant of the script
    GRPOTrainer(model="…", …)            -> model, reward_funcs, train_dataset, …
    LoraConfig(r=8, …)                   -> peft_config.r, …
    load_dataset("…", split="train")     -> the DatasetCall of train_dataset

An expression that has no value without running the script becomes a note with its line.
"""

import ast
import operator
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from rlrun.converters.imports.secrets import is_secret, without_credentials
from rlrun.converters.imports.settings import Setting, add_setting

_POSITIONAL = {
    "GRPOTrainer": ("model", "reward_funcs", "args", "train_dataset", "eval_dataset", "processing_class"),
    "GRPOConfig": ("output_dir",),
    "LoraConfig": (),
    "BitsAndBytesConfig": ("load_in_8bit", "load_in_4bit"),
}
"""The names of positional arguments."""
_INNER = {"peft_config": "LoraConfig", "quantization_config": "BitsAndBytesConfig"}
"""Arguments of GRPOTrainer that are made by another class."""
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
_MAX_EXPRESSION = 100


class Unreadable(Exception):
    """An expression has no value without running the script."""


@dataclass(slots=True)
class DatasetCall:
    """A dataset that the script loads."""

    path: str
    name: str | None = None
    split: str | None = None
    files: str | None = None
    """The file, for `load_dataset("json", data_files=…)`."""
    changes: list[str] = field(default_factory=list)
    """Methods that the script calls on it, such as `map`."""

    def __str__(self) -> str:
        return f'load_dataset("{self.files or self.path}")'


@dataclass(slots=True)
class RewardCall:
    """A reward function."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    is_trl: bool = False
    """Whether TRL has it."""

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__


def read_python(
    text: str,
    name: str,
    settings: dict[str, Setting],
    notes: list[str],
    unread: set[str],
    *,
    allow_empty: bool = False,
) -> None:
    """Adds the settings of a script. Raises ValueError if it is not Python or calls no GRPOTrainer."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{name} is not a Python script: {error}") from None
    reader = _Reader(name, tree, settings, notes, unread)
    try:
        reader.read(allow_empty=allow_empty)
    except RecursionError:
        raise ValueError(f"{name} nests its expressions too deeply to be read") from None


class _Reader:
    """Reads one script."""

    def __init__(
        self, name: str, tree: ast.Module, settings: dict[str, Setting], notes: list[str], unread: set[str]
    ) -> None:
        self.name, self.settings, self.notes, self.unread = name, settings, notes, unread
        nodes = sorted(ast.walk(tree), key=lambda node: getattr(node, "lineno", 0))
        self.calls = [node for node in nodes if isinstance(node, ast.Call)]
        self.functions = {
            node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        self.imported = dict(_imports(nodes))
        self.assigned: dict[str, list[tuple[int, ast.expr]]] = {}
        self.attributes: list[tuple[str, str, ast.expr]] = []
        """Assignments such as `args.beta = 0.1`: object, attribute and value."""
        for node in nodes:
            self._remember(node)

    def read(self, *, allow_empty: bool) -> None:
        """Adds the settings of the script's trainer, or of its only configuration."""
        trainers, configurations = self._named("GRPOTrainer"), self._named("GRPOConfig")
        if not trainers and not configurations:
            if allow_empty:
                return
            raise ValueError(
                f"{self.name} calls neither GRPOTrainer nor GRPOConfig; if it reads its settings from the "
                "command line, give the shell script or the YAML file with them"
            )
        if len(trainers) > 1:
            self.notes.append(f"{self.name} has {len(trainers)} trainers; the last one is imported")
        arguments = dict(self._arguments(trainers[-1], "GRPOTrainer")) if trainers else {}
        self._add_configuration(arguments.pop("args", None), configurations)
        for argument, value in arguments.items():
            self._add_argument(argument, value)

    def _add_configuration(self, value: ast.expr | None, calls: list[ast.Call]) -> None:
        """Adds the arguments of the call that makes the trainer's configuration, and later assignments."""
        names = [value.id] if isinstance(value, ast.Name) else []
        call = self._call(value, "GRPOConfig") if value is not None else None
        if call is None and calls:
            call = calls[-1]
            if len(calls) > 1:
                self.notes.append(f"{self.name} has {len(calls)} GRPOConfig; the last one is imported")
            names += [
                name for name, values in self.assigned.items() if any(each is call for _, each in values)
            ]
        if call is None and value is not None:
            self.notes.append(
                f"{self.name}:{value.lineno}: {_shown(value)} is made elsewhere, and TRL's defaults are "
                "written: give the shell script or the YAML file with its settings"
            )
        if call is not None:
            self._add_all("", dict(self._arguments(call, "GRPOConfig")))
        self._add_all("", {attribute: each for owner, attribute, each in self.attributes if owner in names})

    def _add_argument(self, argument: str, value: ast.expr) -> None:
        """Adds an argument of GRPOTrainer."""
        if argument in _INNER and (call := self._call(value, _INNER[argument])):
            self._add(argument, value, _INNER[argument])
            for name, inner in self._arguments(call, _INNER[argument]):
                plain = name in ("load_in_4bit", "load_in_8bit")
                self._add_value(name if plain else f"{argument}.{name}", inner)
            return
        readers = {
            "train_dataset": self._dataset,
            "eval_dataset": self._dataset,
            "reward_funcs": self._rewards,
            "model": self._model,
        }
        if isinstance(value, ast.Constant) and value.value is None:
            return
        if argument in readers:
            self._add_value(argument, value, readers[argument])
        else:
            self._add(argument, value, _shown(value))

    def _add_all(self, prefix: str, values: dict[str, ast.expr]) -> None:
        for name, value in values.items():
            self._add_value(prefix + name, value)

    def _add_value(self, name: str, node: ast.expr, read: Callable[[ast.expr], Any] | None = None) -> None:
        """Adds a setting with the value of an expression, or a note that it cannot be read."""
        try:
            value = (read or self._value)(node)
        except Unreadable:
            self.unread.add(name)
            self.notes.append(
                f"{self.name}:{node.lineno}: {name}={'…' if is_secret(name) else _shown(node)} cannot be "
                "read without running the script; set its counterpart by hand"
            )
            return
        if isinstance(value, dict) and value:
            for inner, item in value.items():
                self._add(f"{name}.{inner}", node, item)
        else:
            self._add(name, node, value)

    def _add(self, name: str, node: ast.expr, value: Any) -> None:
        add_setting(self.settings, name, value, f"{self.name}:{node.lineno}")

    def _model(self, node: ast.expr) -> Any:
        """Returns the model's name: a text, or the first argument of `from_pretrained`."""
        call = self._resolved(node)
        if isinstance(call, ast.Call) and _called(call) == "from_pretrained" and call.args:
            for keyword in call.keywords:
                if keyword.arg and keyword.arg != "quantization_config":
                    self._add_value(f"model_init_kwargs.{keyword.arg}", keyword.value)
                elif keyword.arg and (inner := self._call(keyword.value, "BitsAndBytesConfig")):
                    for name, value in self._arguments(inner, "BitsAndBytesConfig"):
                        plain = name in ("load_in_4bit", "load_in_8bit")
                        self._add_value(name if plain else f"quantization_config.{name}", value)
            return self._value(call.args[0])
        return self._value(node)

    def _dataset(self, node: ast.expr) -> DatasetCall:
        """Returns the dataset of an expression such as `load_dataset("…", split="train").map(f)`."""
        node = self._resolved(node)
        if isinstance(node, ast.Subscript):
            dataset = self._dataset(node.value)
            dataset.split = str(self._value(node.slice))
            return dataset
        if not isinstance(node, ast.Call):
            raise Unreadable
        if _called(node) == "load_dataset" and node.args:
            words = {keyword.arg: keyword.value for keyword in node.keywords}
            values = {
                name: self._value(words[name]) for name in ("name", "split", "data_files") if name in words
            }
            texts = [str(self._value(argument)) for argument in node.args[:2]]
            name = values.get("name") or (texts[1] if len(texts) > 1 else None)
            return DatasetCall(texts[0], name, values.get("split"), _first(values.get("data_files")))
        if isinstance(node.func, ast.Attribute):
            dataset = self._dataset(node.func.value)
            dataset.changes.append(node.func.attr)
            return dataset
        raise Unreadable

    def _rewards(self, node: ast.expr) -> list[Any]:
        """Returns the reward functions; a text is the name of a reward model."""
        node = self._resolved(node)
        elements = node.elts if isinstance(node, ast.List | ast.Tuple) else [node]
        return [self._reward(element) for element in elements]

    def _reward(self, node: ast.expr) -> Any:
        resolved = self._resolved(node)
        if isinstance(resolved, ast.Constant) and isinstance(resolved.value, str):
            return resolved.value
        if isinstance(resolved, ast.Call):
            name = _called(resolved)
            words = {keyword.arg: self._value(keyword.value) for keyword in resolved.keywords if keyword.arg}
            return RewardCall(name, words, self.imported.get(name, "").startswith("trl"))
        if isinstance(resolved, ast.Attribute):
            return RewardCall(resolved.attr)
        if isinstance(resolved, ast.Name):
            name = resolved.id
            return RewardCall(name, is_trl=self.imported.get(name, "").startswith("trl"))
        raise Unreadable

    def _value(self, node: ast.expr) -> Any:
        """Returns the value of an expression of literals and constants. Raises Unreadable."""
        node = self._resolved(node)
        match node:
            case ast.Constant(value=value) if isinstance(value, bool | int | float | str | None):
                return value
            case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements):
                return [self._value(element) for element in elements]
            case ast.Dict(keys=keys, values=values):
                return {self._key(key): self._value(value) for key, value in zip(keys, values, strict=True)}
            case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords) if all(
                word.arg for word in keywords
            ):
                return {str(word.arg): self._value(word.value) for word in keywords}
            case ast.Call(func=ast.Name(id="str" | "int" | "float" | "Path"), args=[argument], keywords=[]):
                return self._value(argument)
            case ast.UnaryOp(op=ast.USub(), operand=operand) if isinstance(
                number := self._value(operand), int | float
            ):
                return -number
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not self._value(operand)
            case ast.BinOp(left=left, op=operation, right=right):
                return _computed(operation, self._value(left), self._value(right))
            case ast.JoinedStr(values=pieces):
                return "".join(self._piece(piece) for piece in pieces)
        raise Unreadable

    def _key(self, node: ast.expr | None) -> str:
        """Returns a key of a table; None stands for `**` of another table."""
        if node is None:
            raise Unreadable
        return str(self._value(node))

    def _piece(self, node: ast.expr) -> str:
        """Returns a part of an f-string."""
        if isinstance(node, ast.FormattedValue) and node.format_spec is None:
            return str(self._value(node.value))
        return str(self._value(node))

    def _resolved(self, node: ast.expr) -> ast.expr:
        """Returns the expression that was last assigned to a name before its use, or the node itself."""
        for _ in range(_MAX_EXPRESSION):
            if not isinstance(node, ast.Name):
                return node
            before = [value for line, value in self.assigned.get(node.id, ()) if line < node.lineno]
            if not before:
                return node
            node = before[-1]
        raise Unreadable

    def _call(self, node: ast.expr, name: str) -> ast.Call | None:
        """Returns the call of a class that an expression is or was assigned from; None if it is none."""
        node = self._resolved(node)
        return node if isinstance(node, ast.Call) and _called(node) == name else None

    def _named(self, name: str) -> list[ast.Call]:
        return [call for call in self.calls if _called(call) == name]

    def _arguments(self, call: ast.Call, name: str) -> Iterator[tuple[str, ast.expr]]:
        """Yields the arguments of a call by name; `**table` counts with its entries."""
        for argument, value in zip(_POSITIONAL[name], call.args, strict=False):
            yield argument, value
        for keyword in call.keywords:
            if keyword.arg is not None:
                yield keyword.arg, keyword.value
                continue
            table = self._resolved(keyword.value)
            if isinstance(table, ast.Dict) and all(isinstance(key, ast.Constant) for key in table.keys):
                for key, value in zip(table.keys, table.values, strict=True):
                    assert isinstance(key, ast.Constant)
                    yield str(key.value), value
            elif isinstance(table, ast.Call) and _called(table) == "dict":
                yield from ((word.arg, word.value) for word in table.keywords if word.arg)
            else:
                self.notes.append(
                    f"{self.name}:{keyword.value.lineno}: **{_shown(keyword.value)} cannot be read without "
                    "running the script"
                )

    def _remember(self, node: ast.AST) -> None:
        """Keeps assignments to names and attributes."""
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, value)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self.assigned.setdefault(target.id, []).append((target.lineno, value))
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
            self.attributes.append((target.value.id, target.attr, value))


def _imports(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    """Yields the names that a script imports, with their modules."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name, node.module or "") for alias in node.names)


def _called(call: ast.Call) -> str:
    """Returns the last part of the name that is called."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _computed(operation: ast.operator, left: Any, right: Any) -> Any:
    """Returns the result of arithmetic, or of joining texts."""
    numbers = all(isinstance(value, int | float) and abs(value) < 1e15 for value in (left, right))
    texts = isinstance(left, str) and isinstance(right, str)
    if isinstance(operation, ast.Pow) and numbers and 0 <= right <= 64 and abs(left) <= 1024:
        return left**right
    if type(operation) in _OPERATORS and (numbers or (texts and isinstance(operation, ast.Add))):
        try:
            return _OPERATORS[type(operation)](left, right)
        except ZeroDivisionError:
            raise Unreadable from None
    raise Unreadable


def _first(files: Any) -> str | None:
    """Returns the file of `data_files`: a text, a list of one, or a table with the training files."""
    if isinstance(files, dict):
        files = files.get("train")
    if isinstance(files, list):
        files = files[0] if len(files) == 1 else None
    return files if isinstance(files, str) else None


class _WithoutSecrets(ast.NodeTransformer):
    """Replaces arguments that hold a secret, such as `token="…"`."""

    def visit_keyword(self, node: ast.keyword) -> ast.keyword:
        """Replaces the value of a secret argument."""
        if node.arg and is_secret(node.arg):
            return ast.keyword(node.arg, ast.Constant("…"))
        self.generic_visit(node)
        return node


def _shown(node: ast.expr) -> str:
    """Returns an expression as text for notes, without credentials."""
    text = without_credentials(" ".join(ast.unparse(_WithoutSecrets().visit(deepcopy(node))).split()))
    text = "".join(character if character.isprintable() else " " for character in text)
    return text if len(text) <= _MAX_EXPRESSION else f"{text[:_MAX_EXPRESSION]}…"

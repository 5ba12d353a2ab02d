"""Writes the defaults.toml of an importer from the other trainer itself.

python -m scripts.trainer_defaults trl       in an environment with trl and peft
python -m scripts.trainer_defaults verl DIR  of a clone of verl
python -m scripts.trainer_defaults slime DIR MEGATRON  of clones of slime and of Megatron-LM
"""

import ast
import dataclasses
import re
import subprocess
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel

VERL_ENGINES = ("", "megatron_", "torchtitan_", "veomni_")
CONVERTERS = Path(__file__).parents[1] / "rlrun" / "converters"
SLIME = CONVERTERS.parents[1] / "tests" / "data" / "slime_defaults.toml"
"""A file for tests: the importer of slime has the defaults that matter in its rules."""
SLIME_FILES = ("slime/utils/arguments.py", "slime/backends/sglang_utils/arguments.py")
MEGATRON_FILES = (
    "megatron/training/training_config.py",
    "megatron/core/transformer/transformer_config.py",
    "megatron/core/optimizer/optimizer_config.py",
    "megatron/core/model_parallel_config.py",
    "megatron/training/arguments.py",
)
"""Later files replace the defaults of earlier ones."""
_ADDING = ("add_argument", "reset_arg")


def main(trainer: str, *arguments: str) -> None:
    """Writes the file of one trainer."""
    written = {
        "trl": trl_defaults,
        "verl": verl_defaults,
        "prime_rl": prime_rl_defaults,
        "slime": slime_defaults,
    }
    text = written[trainer](*arguments)
    path = SLIME if trainer == "slime" else CONVERTERS / trainer / "defaults.toml"
    path.write_text(text, "utf-8")


def trl_defaults() -> str:
    """Returns the fields of `GRPOConfig` and of what else `trl grpo` and GRPOTrainer take."""
    import inspect

    from peft import LoraConfig
    from trl import DatasetMixtureConfig, GRPOConfig, GRPOTrainer, ModelConfig
    from trl.scripts.grpo import GRPOScriptArguments

    rows: dict[str, Any] = {}
    tables: list[str] = []
    parts = [(GRPOConfig, ""), (GRPOScriptArguments, ""), (ModelConfig, ""), (DatasetMixtureConfig, "")]
    for kind, prefix in [*parts, (LoraConfig, "peft_config.")]:
        for field in dataclasses.fields(kind):
            rows[prefix + field.name] = _default(field)
            if "dict" in str(field.type):
                tables.append(prefix + field.name)
    for name in list(inspect.signature(GRPOTrainer.__init__).parameters)[1:]:
        if name != "args":
            rows.setdefault(name, None)
    source = f"trl {version('trl')}"
    about = f"with transformers {version('transformers')} and peft {version('peft')}"
    return _document(source, about, rows, [*tables, "quantization_config"])


def verl_defaults(folder: str) -> str:
    """Returns the keys of verl's own generated configurations: that of FSDP, and what other engines add."""
    commit = _git(folder, "rev-parse", "HEAD").strip()
    rows: dict[str, Any] = {}
    for engine in VERL_ENGINES:
        path = f"verl/trainer/config/_generated_ppo_{engine}trainer.yaml"
        for name, value in _leaves(yaml.safe_load(_git(folder, "show", f"HEAD:{path}"))):
            rows.setdefault(name, value)
    tables = [name for name, value in rows.items() if value == {}]
    # a table that one engine leaves open has keys in another
    tables += [match[1] for name in rows if (match := re.match(r"(.*?\.override_\w+)\.", name))]
    unset = ("???", "", {}, [])
    rows = {name: None if value in unset or "${" in str(value) else value for name, value in rows.items()}
    about = (
        "verl/trainer/config/_generated_ppo_*trainer.yaml; settings that take another one's value are unset"
    )
    return _document(f"verl {commit[:7]}", about, rows, tables)


def prime_rl_defaults(folder: str) -> str:
    """Returns the fields of prime-rl's configuration classes, which are imported from the clone.

    The packages that they import for the settings of environments and renderers are replaced by empty ones:
    such a table has keys of its own.
    """
    for name in ("pydantic_config", "verifiers", "verifiers.v1", "renderers"):
        sys.modules[name] = _Empty(name)
    sys.path.insert(0, str(Path(folder) / "packages" / "prime-rl-configs" / "src"))
    from prime_rl.configs.rl import RLConfig  # type: ignore[import-not-found, unused-ignore]

    rows: dict[str, Any] = {}
    tables: list[str] = []
    _add_fields(RLConfig, "", rows, tables)
    about = "packages/prime-rl-configs; `*` stands for the number of a source"
    return _document(f"prime-rl {_git(folder, 'rev-parse', 'HEAD')[:7]}", about, rows, tables)


def slime_defaults(folder: str, megatron: str) -> str:
    """Returns the defaults of the flags that the importer knows, without running either trainer. Megatron's
    are of the commit that slime's Dockerfile installs.
    """
    from rlrun.converters.slime.flag_table import flag_table

    pinned = re.search(r"MEGATRON_COMMIT=(\w+)", _git(folder, "show", "HEAD:docker/Dockerfile"))
    assert pinned, "slime's Dockerfile names a commit of Megatron-LM"
    found: dict[str, Any] = {}
    for path in MEGATRON_FILES:
        found |= _parser_defaults(_git(megatron, "show", f"{pinned[1]}:{path}"))
    for path in SLIME_FILES:
        found |= _parser_defaults(_git(folder, "show", f"HEAD:{path}"))
    rows = {
        row.name.removeprefix("--"): found.get(row.name) for row in flag_table().values() if not row.older
    }
    commit = _git(folder, "rev-parse", "--short=7", "HEAD").strip()
    return _document(f"slime {commit}", f"with Megatron-LM {pinned[1][:7]}", rows, ())


def _parser_defaults(text: str) -> dict[str, Any]:
    """Returns the default of each flag in a Python file that fills a parser, or whose classes do."""
    rows: dict[str, Any] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            value = _literal(node.value)
            if value is not None and value is not True:  # a switch that is on has a flag that turns it off
                rows[f"--{node.target.id.replace('_', '-')}"] = value
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _ADDING:
            keywords = {keyword.arg: _literal(keyword.value) for keyword in node.keywords}
            is_switch = str(keywords.get("action")).startswith("store_")
            for name in filter(_is_flag, map(_literal, node.args)):
                rows[name.replace("_", "-")] = None if is_switch else keywords.get("default")
    return rows


def _is_flag(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("--")


def _literal(node: ast.expr) -> Any:
    """Returns the value of a literal or a product of numbers; None for anything else."""
    try:
        value = ast.literal_eval(node)
    except ValueError:
        text = ast.unparse(node)
        value = eval(text) if re.fullmatch(r"[\d *]+", text) else None
    plain = isinstance(value, int | float | str | list) and value not in ("{}", [])
    return None if value is False or not plain else value


class _Empty(types.ModuleType):
    """A package in which every name is a class without fields."""

    __path__: Sequence[str] = []

    def __getattr__(self, name: str) -> Any:
        if name == "v1":
            return sys.modules["verifiers.v1"]
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (BaseModel,), {}) if name[0].isupper() else lambda *arguments: arguments[0]
        setattr(self, name, made)
        return made


def _add_fields(model: Any, prefix: str, rows: dict[str, Any], tables: list[str]) -> None:
    """Adds the fields of a class, of the classes of its fields, and of all variants of those."""
    if not model.model_fields or model.model_config.get("extra") == "allow":
        tables.append(prefix.rstrip("."))
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        value = str(default) if isinstance(default, Path) else default
        plain = isinstance(value, bool | int | float | str | list) and value != []
        rows.setdefault(prefix + name, value if plain else None)
        text = str(field.annotation)
        if "dict[" in text:
            tables.append(prefix + name)
        # the default variant of a union comes first, because its values are the defaults
        variants = [type(default)] if isinstance(default, BaseModel) else []
        for inner in dict.fromkeys([*variants, *_models(field.annotation)]):
            below = f"{prefix}{name}.*." if "list[" in text else f"{prefix}{name}."
            _add_fields(inner, below, rows, tables)


def _models(annotation: Any) -> Iterator[Any]:
    """Yields the classes of an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


def _git(folder: str, *arguments: str) -> str:
    command = ["git", "-C", folder, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        elif name != "_target_":
            yield prefix + name, value


def _default(field: Any) -> Any:
    """Returns a field's default as a plain value; None for one that TOML has no value for."""
    value = field.default
    if value is dataclasses.MISSING:
        factory = field.default_factory
        value = None if factory is dataclasses.MISSING else factory()
    value = value.value if isinstance(value, Enum) else value
    return value if isinstance(value, bool | int | float | str | list) and value != [] else None


def _document(source: str, about: str, rows: Mapping[str, Any], tables: Iterable[str]) -> str:
    """Returns the text of defaults.toml."""
    from rlrun.specs.reading.reference import as_toml

    lines = ["# Written by `python -m scripts.trainer_defaults`; do not edit.", f"# {about}"]
    lines += [f"source = {as_toml(source)}"]
    for title, names in (
        ("unset", [name for name, value in rows.items() if value is None]),
        ("open", sorted(set(tables))),
    ):
        lines += [f"{title} = [", *(f"    {as_toml(name)}," for name in names), "]"]
    lines += ["", "[defaults]"]
    for name, value in rows.items():
        if value is not None:
            lines.append(f"{as_toml(name) if '.' in name else name} = {as_toml(value)}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The draft of a spec whose settings are slime's flags."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, count
from typing import Any

from rlrun.converters.imports.secrets import is_secret, without_credentials
from rlrun.converters.imports.spec_draft import SpecDraft, why_reserved
from rlrun.converters.imports.yaml_table import yaml_table
from rlrun.models.families.table import TABLES
from rlrun.models.family import Support
from rlrun.models.json_files import parse_json
from rlrun.specs.unwritten import Unwritten, class_name

_ROLLOUT_SECTIONS = {"rollout", "rewards", "scoring", "filters", "engine", "engines", "eval", "debug"}
_ROLLOUT_SECTIONS |= {"fault_tolerance", "reference", "teacher", "critic", "algorithm"}
_POLICY_LOSS_KEYS = {"cluster.placement", "trainer.optimizer_steps", "trainer.old_log_probs", "deterministic"}
_POLICY_LOSS_KEYS |= {"trainer.moe.routing_replay"}
_DEMONSTRATION_KEYS = ("rollout.max_prompt_tokens", "rollout.max_response_tokens", "algorithm.type")
_MAX_WHOLE = 1 << 62
_FAMILY_OF_SPEC = {"slime_plugins.models.glm4": "glm4"}
"""The model_type of models that slime describes by a module of --spec, for scripts without a config.json."""
_PURE_DISTILLATION = "on_policy_distillation.reward_func"


@dataclass(slots=True)
class Flag:
    """A flag in the script's training command."""

    name: str
    values: list[str]
    location: str
    """File and line, such as `run.sh:12`."""
    earlier: "Flag | None" = None
    """The previous occurrence of the same flag."""

    @property
    def before(self) -> Iterator["Flag"]:
        """Yields the earlier occurrences of the same flag, the latest first."""
        flag = self.earlier
        while flag is not None:
            yield flag
            flag = flag.earlier

    def __str__(self) -> str:
        values = ["…"] if self.values and is_secret(self.name) else map(without_credentials, self.values)
        return " ".join([self.name, *values])


@dataclass(kw_only=True)
class Draft(SpecDraft):
    """A spec that is being written from flags."""

    command: str = "rlrun import slime"
    flags: dict[str, Flag]
    is_async: bool = False
    """Whether the script runs train_async.py."""
    read_file: Callable[[str], str | None] = lambda path: None
    """Returns the text of a file that a flag names; None if it is not found."""
    int4_group: int | None = None
    """How many numbers share a scale in INT4 training; None if the script does not say it."""
    unwritten: list[Unwritten] = field(default_factory=list)
    """The plugins that the spec names in `functions_file` and that remain to be written."""

    @property
    def functions_file(self) -> str:
        """Returns the name of the file, beside the spec, of the plugins that remain to be written."""
        return f"{re.sub(r'[^A-Za-z0-9]+', '_', self.values['name'])}_functions.py"

    @property
    def algorithm(self) -> str:
        """Returns the `algorithm.type` that the flags select."""
        if self.text("--loss-type") == "sft_loss":
            return "sft"
        if self.is_pure_distillation:
            return "on_policy_distillation"
        return self.text("--advantage-estimator") or "grpo"

    @property
    def is_pure_distillation(self) -> bool:
        """Returns whether the reward is slime's function for distillation, which is 0 for every sample."""
        custom = self.text("--custom-rm-path") or ""
        is_sft = self.text("--loss-type") == "sft_loss"
        return not is_sft and "--use-opd" in self.flags and custom.endswith(_PURE_DISTILLATION)

    @property
    def updates(self) -> int:
        """Returns the number of optimizer steps per rollout step."""
        samples = self.whole("--rollout-batch-size", 0) * self.whole("--n-samples-per-prompt", 1)
        given = self.whole("--num-steps-per-rollout", 0)
        size = self.whole("--global-batch-size", samples)
        return max(1, given or (samples // size if size > 0 else 1))

    @cached_property
    def model_config(self) -> dict[str, Any]:
        """Returns the config.json of --hf-checkpoint; empty if it cannot be read here."""
        text = self.read_file(f"{(self.text('--hf-checkpoint') or '').rstrip('/')}/config.json")
        try:
            config = parse_json(text or "{}")
        except ValueError:
            return {}
        return config if isinstance(config, dict) else {}

    @property
    def only_transformers(self) -> Support | None:
        """Returns the model's family, if only the layers of transformers compute it; None otherwise."""
        named = next((kind for spec, kind in _FAMILY_OF_SPEC.items() if spec in self.values_of("--spec")), "")
        kind = str(self.model_config.get("model_type", named))
        return None if kind in TABLES["torchtitan"] else TABLES["transformers"].get(kind)

    def text(self, name: str) -> str | None:
        """Returns a flag's first value; None if the script gives no such flag or value."""
        flag = self.flags.get(name)
        return flag.values[0] if flag and flag.values else None

    def values_of(self, name: str) -> list[str]:
        """Returns all values of a flag; none if the script does not give it."""
        return self.flags[name].values if name in self.flags else []

    def given(self, *names: str) -> list[Flag]:
        """Returns the named flags that occur in the script."""
        return [self.flags[name] for name in names if name in self.flags]

    def number(self, name: str, default: float) -> float:
        """Returns a flag's value as a number; if it is not finite, adds a note and returns the default."""
        text = self.text(name)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            self.note(self.flags[name], f"not a number; {default:g} is used")
            return default
        return value

    def whole(self, name: str, default: int) -> int:
        """Returns a flag's value as a whole number; if it is not, adds a note and returns the default."""
        value = self.number(name, default)
        if value != int(value) or abs(value) > _MAX_WHOLE:
            self.note(self.flags[name], f"not a whole number; {default} is used")
            return default
        return int(value)

    def count(self, name: str, default: int) -> int:
        """Returns a flag's value as a whole number of at least 1; a smaller one is replaced, with a note."""
        value = self.whole(name, default)
        if value < 1:
            self.note(self.flags[name], f"less than 1; {max(default, 1)} is used")
        return value if value >= 1 else max(default, 1)

    def is_given(self, name: str) -> bool:
        """Returns whether the script has a flag of this name."""
        return name in self.flags

    def set(self, key: str, value: Any, names: Sequence[str], comment: str = "") -> None:
        """Sets a dotted key. With demonstrations, keys about rollouts become notes instead."""
        if self.algorithm == "sft" and _is_unused_by_sft(key):
            for flag in self.given(*names):
                self.note(flag, "no effect: training on demonstrations has no sampling and no policy loss")
            return
        super().set(key, value, names, comment)

    def leave(
        self,
        kind: str,
        key: str,
        *flags: Flag,
        function: str | None = None,
        base: str | None = None,
        methods: tuple[str, ...] = (),
    ) -> None:
        """Sets a key to a plugin that remains to be written, in place of the flags' functions.

        `function`: the function, if a flag's file names it. `base`, `methods`: as in `Unwritten`.
        """
        name = self._free_name(class_name(function or (flags[0].values or [""])[0]))
        names = tuple(flag.name for flag in flags)
        self.set(key, f"{self.functions_file}:{name}", names, "to be written")
        origin = f"slime's {function or ' and '.join(map(str, flags))}"
        self.unwritten.append(Unwritten(kind, name, origin, base, methods))
        for flag in flags:
            self.note(flag, f"write the class {name} in {self.functions_file} (docs/plugins.md)")

    def _free_name(self, name: str) -> str:
        """Returns the name of a class; with a number where the file has that name, or `…Params` of it."""
        taken = {taken for other in self.unwritten for taken in (other.name, f"{other.name}Params")}
        numbered = chain([name], (f"{name}{number}" for number in count(2)))
        return next(each for each in numbered if not taken & {each, f"{each}Params"})

    def server_argument(self, table: str, name: str, value: Any, flag: str) -> None:
        """Sets an argument of the SGLang server, unless rlrun sets it itself."""
        if (why := why_reserved(name)) is not None:
            self.note(self.flags[flag], f"{name}: {why}")
        else:
            self.set(f"{table}.{name.replace('-', '_')}", value, (flag,))


def _is_unused_by_sft(key: str) -> bool:
    """Returns whether a key is about rollouts or a policy loss."""
    section = key.partition(".")[0]
    return key not in _DEMONSTRATION_KEYS and (section in _ROLLOUT_SECTIONS or key in _POLICY_LOSS_KEYS)


def file_settings(draft: Draft, name: str) -> dict[str, Any] | None:
    """Returns the table in a flag's YAML file; if it cannot be read, adds a note and returns None."""
    flag = draft.flags.get(name)
    if flag is None:
        return None
    text = draft.read_file(draft.text(name) or "")
    if text is None:
        draft.note(flag, "the file was not found: its settings are left out")
        return None
    try:
        return yaml_table(text)
    except ValueError as error:
        draft.note(flag, f"the file {error}")
        return None

"""What rlrun sets for SGLang servers of models with Gated DeltaNet, and why; for the plan and the job."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun.models.config_defaults import with_family_defaults
from rlrun.models.families.table import family_of
from rlrun.models.json_files import read_json
from rlrun.specs.derived.engine_sections import POLICY, engine_sections
from rlrun.specs.derived.sglang_config import missing_keys
from rlrun.specs.sections.engine import EngineSpec
from rlrun.specs.sections.job import Spec

_CONVOLUTION = "SGLANG_MAMBA_CONV_DTYPE"


@dataclass(frozen=True, slots=True)
class ServerSetting:
    """An argument or a variable that a server is started with, unless the spec sets it."""

    name: str
    """An argument has the form of a key of `[engine.sglang]`."""
    value: Any
    reason: str
    is_variable: bool = False

    @property
    def text(self) -> str:
        """The setting and its reason, for people."""
        return f"{self.name} = {json.dumps(self.value)}: {self.reason}"


def recurrent_settings(section: EngineSpec, folder: Path, *, on_cpu: bool) -> list[ServerSetting]:
    """Returns the settings of a server for the model in `folder`; none without Gated DeltaNet.

    There are none, too, if the folder has no `config.json` that can be read.
    """
    try:
        config = read_json(folder / "config.json")
        settings = list(_settings(section, config, on_cpu=on_cpu))
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return []  # other rules report a broken file
    return settings


def _settings(section: EngineSpec, config: Mapping[str, Any], *, on_cpu: bool) -> Iterator[ServerSetting]:
    if not family_of(with_family_defaults(config)).recurrent:
        return
    if section.dtype == "float32":
        why = "SGLang keeps the inputs of Gated DeltaNet's convolution in bfloat16, also for a float32 model"
        yield ServerSetting(_CONVOLUTION, "float32", why, is_variable=True)
    if missing := missing_keys(config):
        why = "SGLang reads these keys, and config.json has their values in keys of transformers 5 only"
        yield ServerSetting("json_model_override_args", json.dumps(missing), why)
    if on_cpu:
        why = "SGLang's other strategies take snapshots of recurrent states, which needs a GPU"
        yield ServerSetting("mamba_radix_cache_strategy", "no_buffer", why)
        why = "that strategy does not work with overlapping schedules"
        yield ServerSetting("disable_overlap_schedule", True, why)


def recurrent_lines(spec: Spec) -> Iterator[str]:
    """Yields a line for each setting of the job's servers whose model is in a local folder."""
    for path, section in engine_sections(spec):
        folder = Path(getattr(section, "path", None) or spec.model.path)
        if section.type == "sglang" and folder.is_absolute():
            table = "[engine]" if path == POLICY else f'[[engines]] "{getattr(section, "name", "")}"'
            for setting in recurrent_settings(section, folder, on_cpu=not spec.cluster.gpus_per_node):
                yield f"{table}: servers are started with {setting.text}"

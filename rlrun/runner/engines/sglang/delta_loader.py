"""Lets an SGLang server apply weight deltas, with a function of rlrun that it loads by name."""

import os
from dataclasses import replace
from pathlib import Path

from rlrun.runner.engines.sglang.setup import SglangSetup
from rlrun.runner.weights.carriers.disk.updates import DELTA_LOADER
from rlrun.runner.weights.deltas import server_path
from rlrun.specs.derived.sglang_arguments import flag_name

_FLAG = "custom-weight-loader"


def with_delta_loader(setup: SglangSetup) -> SglangSetup:
    """Returns the settings with the function, besides weight loaders and Python paths of the spec."""
    loaders, arguments = [DELTA_LOADER], {}
    for name, value in setup.arguments.items():
        if flag_name(name) == _FLAG:
            loaders += value if isinstance(value, list) else [value]
        else:
            arguments[name] = value
    folder = str(Path(server_path.__file__).parent)
    path = os.pathsep.join(filter(None, [folder, setup.environment.get("PYTHONPATH")]))
    return replace(
        setup,
        arguments={**arguments, _FLAG: loaders},
        environment={**setup.environment, "PYTHONPATH": path},
    )

"""Brings functions of a notebook into the processes of a job.

A function of a file is named by its file. A function that was defined in a notebook or at a prompt has no
file: its code is written, as cloudpickle packs it, into a file that defines the function again.
"""

import base64
import hashlib
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

from rlrun.plugins.functions import plugin_of
from rlrun.runner.host.atomic_files import write_text
from rlrun.specs.cache import private_folder

_MODULE = '''"""The function {name} of a notebook, as rlrun.load packed it."""

import base64

import cloudpickle

import rlrun

{name} = rlrun.{decorator}(
    cloudpickle.loads(
        base64.b64decode(
            "{packed}"
        )
    )
)
'''
_DECORATORS = {"score": "reward", "score_group": "reward", "__call__": "filter", "__getitem__": "data"}


def plugin_file(function: Callable[..., Any]) -> str:
    """Returns the `type` of a decorated function in a spec: `/path/to/my_rewards.py:brief`.

    Raises TypeError if the function is not decorated, or is not defined at the top of its file.
    """
    plugin = plugin_of(function)
    if plugin is function:
        raise TypeError(
            f"{function!r} is not a plugin: decorate it with @rlrun.reward, @rlrun.filter or @rlrun.data"
        )
    if function.__module__ == "__main__":
        return _packed_file(function, plugin)
    if "." in function.__qualname__:
        raise TypeError(
            f"{function.__qualname__} is inside another function or class: move it to the top level"
        )
    return f"{inspect.getfile(function)}:{function.__name__}"


def _packed_file(function: Callable[..., Any], plugin: type[Any]) -> str:
    """Writes the function's code into a file that is named after its content."""
    import cloudpickle

    packed = base64.b64encode(cloudpickle.dumps(_undecorated(function))).decode()
    decorator = next(name for method, name in _DECORATORS.items() if method in vars(plugin))
    text = _MODULE.format(name=function.__name__, decorator=decorator, packed=packed)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    path = private_folder("functions") / f"{function.__name__}_{digest}.py"
    write_text(path, text)
    return f"{path}:{function.__name__}"


def _undecorated(function: Any) -> FunctionType:
    """Returns a copy of the function without its plugin class, which is made again where it is loaded."""
    code, name = function.__code__, function.__name__
    copy = FunctionType(code, function.__globals__, name, function.__defaults__, function.__closure__)
    copy.__kwdefaults__, copy.__annotations__ = function.__kwdefaults__, function.__annotations__
    copy.__qualname__, copy.__module__, copy.__doc__ = name, "__main__", function.__doc__
    return copy

"""Plain functions as plugins: a reward, a filter or a data source without a class. Plain classes as
environments.

    @rlrun.reward
    def brief(sample: Sample, *, limit: int = 100) -> float:
        return 1.0 if len(sample.tokens) <= limit else 0.0

The decorator returns the function itself, so it can still be called and tested. Its keyword-only arguments
are the plugin's parameters in the spec: `type = "my_rewards.py:brief"`, `limit = 50`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, get_type_hints

from pydantic import create_model

from rlrun.plugins.protocols import API_VERSION
from rlrun.plugins.types import Row
from rlrun.specs.sections.section import Section

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Class = TypeVar("_Class", bound=type)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_ATTRIBUTE = "rlrun_plugin"
"""The attribute of a decorated function that holds its plugin class."""


def reward(function: _Function) -> _Function:
    """Makes a function a reward: it gets a `Sample` and returns a number, or a table of numbers.

    If its argument is named `samples`, it gets all samples of a prompt and returns a number for each. It may
    be async. Raises TypeError if its arguments do not fit.
    """
    method = "score_group" if _positional(function, 1) == ["samples"] else "score"
    return _add_plugin(function, {method: _method(function)})


def filter(function: _Function) -> _Function:
    """Makes a function a filter: it gets a scored `Group` and returns `Drop`, `Mask` or None.

    Raises TypeError if its arguments do not fit.
    """
    _positional(function, 1)
    return _add_plugin(function, {"__call__": _method(function)})


def data(function: _Function) -> _Function:
    """Makes a function a data source: it returns all rows, each a `Row` or a table with a `prompt`.

    It is called once in each process that reads rows, and must return the same rows every time. The keys of a
    table are the fields of `Row`; without `id`, a row's position is its id. Raises TypeError if the function
    has arguments that are not keyword-only.
    """
    _positional(function, 0)

    def start(self: Any, params: Section) -> None:
        self._rows = as_rows(function(**dict(params)))

    return _add_plugin(
        function,
        {
            "__init__": start,
            "__len__": lambda self: len(self._rows),
            "__getitem__": lambda self, index: self._rows[index],
        },
    )


def environment(cls: _Class) -> _Class:
    """Makes a class an environment: it has `tasks`, and `reset` and `step` or `run` (docs/environments.md).

    The keyword-only arguments of its `__init__` are the plugin's parameters. Raises TypeError for others.
    """
    start = cls.__init__ if "__init__" in vars(cls) else (lambda self: None)  # type: ignore[misc]
    _positional(start, 1, cls.__name__)

    def start_from_params(self: Any, params: Section) -> None:
        start(self, **dict(params))

    return _add_plugin(cls, {"__init__": start_from_params}, _params_of(start, cls.__name__), (cls,))


def plugin_of(member: Any) -> Any:
    """Returns the plugin class of a decorated function or class, and anything else unchanged."""
    return getattr(member, _ATTRIBUTE, member)


def _positional(function: Callable[..., Any], count: int, title: str = "") -> list[str]:
    """Returns the names of the positional arguments. Raises TypeError unless there are `count` of them.

    `title` names the function in the message; "": its own name.
    """
    signature = inspect.signature(function)
    kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
    names = [name for name, kind in kinds.items() if kind in _POSITIONAL]
    if len(names) != count or not set(kinds.values()) <= {*_POSITIONAL, inspect.Parameter.KEYWORD_ONLY}:
        arguments = "argument" if count == 1 else "arguments"
        raise TypeError(
            f"{title or function.__name__}{signature} must have {count} positional {arguments}; its "
            "parameters come after a *, as in (sample, *, limit: int = 100)"
        )
    return names


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the method that calls the function with the plugin's parameters."""
    if inspect.iscoroutinefunction(function):

        async def call_async(self: Any, received: Any) -> Any:
            return await function(received, **dict(self.params))

        return call_async

    def call(self: Any, received: Any) -> Any:
        return function(received, **dict(self.params))

    return call


def _add_plugin(
    function: _Function,
    methods: dict[str, Callable[..., Any]],
    params: type[Section] | None = None,
    bases: tuple[type, ...] = (),
) -> _Function:
    """Sets the plugin class on the function or class, under a name by which pickle finds it again.

    `params` are by default those of the function's keyword-only arguments.
    """

    def start(self: Any, params: Section) -> None:
        self.params = params

    name = f"{function.__qualname__}.{_ATTRIBUTE}"
    described = {"__module__": function.__module__, "__doc__": function.__doc__}
    params = params or _params_of(function)
    params.__module__, params.__qualname__ = function.__module__, f"{name}.Params"
    members = {"__init__": start, "Params": params, "api_version": API_VERSION, **described, **methods}
    plugin = type(function.__name__, bases, members)
    plugin.__qualname__ = name
    setattr(function, _ATTRIBUTE, plugin)
    return function


def _params_of(function: Callable[..., Any], title: str = "") -> type[Section]:
    """Returns the model of the keyword-only arguments. Raises TypeError for one without a type.

    `title` names the model; "": the function's name.
    """
    title = title or function.__name__
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is not parameter.KEYWORD_ONLY:
            continue
        if name not in hints:
            raise TypeError(f"{title}: its parameter {name} has no type; write for example {name}: float = 1")
        fields[name] = (hints[name], ... if parameter.default is parameter.empty else parameter.default)
    return create_model(f"{title}Params", __base__=Section, __doc__=function.__doc__, **fields)


def as_rows(returned: Sequence[Any]) -> list[Row]:
    """Returns the rows of a data function. Raises ValueError, naming the row, for one that is not a row."""
    rows = []
    for number, row in enumerate(returned):
        try:
            rows.append(row if isinstance(row, Row) else Row(**{"id": str(number), **row}))
        except TypeError as error:
            raise ValueError(f"row {number} is neither a Row nor a table with a prompt: {error}") from None
    return rows

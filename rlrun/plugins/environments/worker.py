"""The program of an environment's process, which rlrun.plugins.environments.process starts and kills.

    stdin:  one setup, then calls, each one JSON line
    stdout: one JSON line when the environment can be constructed, then one for each call

It runs in the interpreter that the spec names, which has Python 3.11, pydantic and what the environment
imports, but not rlrun: the modules of rlrun that an environment needs are imported from rlrun's own folder,
and nothing else from there. An environment prints to stderr, so that it cannot garble the answers.
"""

import asyncio
import ctypes
import importlib
import importlib.util
import inspect
import json
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
MAX_MESSAGE_LENGTH = 1000
LINE_BYTES = 64 << 20
"""Maximum length of a line in both directions."""
Answer = dict[str, Any]


def main() -> None:
    """Constructs the environment, reports that it is ready, and answers calls until stdin ends."""
    requests = os.fdopen(os.dup(sys.stdin.fileno()), "rb", buffering=0)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())

    def send(answer: Answer) -> None:
        answers.write(json.dumps(answer, default=_plain).encode() + b"\n")

    asyncio.run(_serve(requests, send))


async def _serve(requests: Any, send: Callable[[Answer], None]) -> None:
    reader = asyncio.StreamReader(limit=LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), requests)
    setup = json.loads(await reader.readline())
    die_with_driver(setup["parent"])
    try:
        sys.meta_path.insert(0, _DriversModules(setup["modules"]))
        environments = _Environments(_load(setup), setup["params"])
    except BaseException as error:  # the boundary to an environment: it may raise anything, even SystemExit
        send({"problem": _describe(error)})
        return
    send({"ready": True})
    running: dict[int, asyncio.Task[None]] = {}
    while line := await reader.readline():
        call = json.loads(line)
        task = asyncio.create_task(_answer(environments, call, send))
        running[call["call"]] = task
        task.add_done_callback(partial(_forget, running, call["call"]))
    await asyncio.gather(*running.values())
    await environments.close()


def _forget(running: dict[int, asyncio.Task[None]], number: int, _: asyncio.Task[None]) -> None:
    del running[number]


async def _answer(
    environments: "_Environments", call: Mapping[str, Any], send: Callable[[Answer], None]
) -> None:
    try:
        result = await getattr(environments, call["method"])(**call["arguments"])
        send({"call": call["call"], "result": result})
    except BaseException as error:  # the boundary to an environment
        traceback.print_exception(error)
        send({"call": call["call"], "error": _describe(error), **_typed(error)})


@dataclass(slots=True)
class _Episode:
    """One execution in an environment with `step`."""

    environment: Any
    random_state: Any


class _Environments:
    """Constructs environments and makes the calls of the driver."""

    def __init__(self, plugin: Any, params: Any) -> None:
        """Constructs the first environment. Raises whatever the plugin's constructor raises."""
        self._plugin = plugin
        self._params = plugin.Params.model_validate(params)
        self._free = [plugin(self._params)]
        self._episodes: dict[str, _Episode] = {}
        self._runs: dict[str, asyncio.Task[Any] | None] = {}
        """Executions of an environment that has `run`."""

    async def tasks(self) -> list[Any]:
        """Returns the tasks as rows."""
        from rlrun.plugins.functions import as_rows

        return [asdict(row) for row in as_rows(await _awaited(self._free[0].tasks()))]

    async def reset(self, episode: str, task: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """Begins an execution. Returns the first messages; None: the row's prompt."""
        from rlrun.plugins.environments.turn import checked_messages

        environment = self._free.pop() if self._free else self._plugin(self._params)
        random_state = random.Random(task["seed"]).getstate()
        self._episodes[episode] = _Episode(environment, random_state)
        observation = await self._call(episode, environment.reset, _task(task))
        return None if observation is None else checked_messages(observation)

    async def step(self, episode: str, action: str) -> dict[str, Any]:
        """Returns the turn after an action."""
        from rlrun.plugins.environments.turn import checked_turn

        return checked_turn(await self._call(episode, self._episodes[episode].environment.step, action))

    async def run(self, episode: str, task: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the result of an environment that asks the policy itself. All executions share it."""
        run = self._free[0].run
        self._runs[episode] = asyncio.current_task()
        try:
            if inspect.iscoroutinefunction(run):
                return dict(await run(_task(task)) or {})
            return dict(await asyncio.to_thread(run, _task(task)) or {})
        finally:
            del self._runs[episode]

    async def end(self, episode: str, reuse: bool) -> None:
        """Ends an execution, after which its environment serves another one if `reuse` is set."""
        if run := self._runs.get(episode):
            run.cancel()
        ended = self._episodes.pop(episode, None)
        if ended is None:
            return
        if reuse:
            self._free.append(ended.environment)
        else:
            await _close(ended.environment)

    async def close(self) -> None:
        """Closes every environment."""
        for environment in [*self._free, *(episode.environment for episode in self._episodes.values())]:
            await _close(environment)

    async def _call(self, episode: str, method: Callable[[Any], Any], argument: Any) -> Any:
        """Calls a method with the random numbers of its own execution, whatever others draw in between."""
        own = self._episodes[episode]
        random.setstate(own.random_state)
        result = method(argument)
        own.random_state = random.getstate()
        return await _awaited(result)


def _task(task: Mapping[str, Any]) -> Any:
    from rlrun.plugins.agent_task import AgentTask
    from rlrun.plugins.engines import Address

    engines = {name: Address(**address) for name, address in task.get("engines", {}).items()}
    return AgentTask(**{**task, "engines": engines})


async def _awaited(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


async def _close(environment: Any) -> None:
    if hasattr(environment, "close"):
        await _awaited(environment.close())


def _load(setup: Mapping[str, Any]) -> Any:
    """Returns the plugin's class from `module:class`, or from a file."""
    from rlrun.plugins.functions import plugin_of

    name, _, member = setup["target"].rpartition(":")
    if not name.endswith(".py"):
        return plugin_of(getattr(importlib.import_module(name), member))
    spec = importlib.util.spec_from_file_location(f"rlrun_local_{Path(name).stem}", name)
    assert spec is not None and spec.loader is not None, "the name ends in .py"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return plugin_of(getattr(module, member))


class _DriversModules:
    """Finds a few top-level modules where the driver has them, instead of in this interpreter."""

    def __init__(self, files: Mapping[str, str]) -> None:
        """`files`: the file of each module, `__init__.py` for a package."""
        self._files = files

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Returns where a module of the driver is; None for any other module."""
        file = self._files.get(name)
        if file is None:
            return None
        folders = [str(Path(file).parent)] if Path(file).name == "__init__.py" else None
        return importlib.util.spec_from_file_location(name, file, submodule_search_locations=folders)


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:MAX_MESSAGE_LENGTH]


def _typed(error: BaseException) -> Answer:
    """Returns the type of a failure, and the reward of an error of the policy (rlrun.plugins.failures)."""
    failure, reward = getattr(error, "failure", None), getattr(error, "reward", None)
    return {} if failure is None else {"failure": str(failure), "reward": reward}


def _plain(value: Any) -> Any:
    """Returns numbers of numpy as numbers, and anything else as text."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else str(value)


def die_with_driver(parent: int) -> None:
    """Makes Linux kill this process when the driver dies, even if it hangs; elsewhere stdin ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit("the driver is gone")


if __name__ == "__main__":
    main()

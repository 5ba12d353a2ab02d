"""What a turn of an execution costs the driver, with 1,000 executions at once, of which one in ten is lost.

    python -m benchmarks.many_executions

`session`: an environment in the driver's own event loop, which sleeps between its turns. `endpoint`: an agent
that asks over HTTP; the 1,000 clients are in a process of their own. The engine is a fake that sleeps, in the
driver's process. One execution in twenty raises an error in its fourth turn, and one in twenty hangs there
until its deadline. CPU time is that of the driver's process alone, from the first request to the end of the
last execution, divided by the turns; memory is the largest growth of its resident memory, divided by the
executions. Every sample is compared with what the engine returned for it, token by token. Prints one JSON
object.
"""

import argparse
import asyncio
import json
import multiprocessing
import resource
import subprocess
import sys
import threading
import time
from collections import defaultdict
from multiprocessing.connection import Connection
from typing import Any

import aiohttp
import numpy as np
import psutil

from benchmarks.orchestrator import NoWork
from rlrun.plugins.agent_task import AgentTask
from rlrun.plugins.authoring.rollout_testing import END, LetterChat
from rlrun.plugins.failures import InfrastructureError
from rlrun.plugins.generation import Generation, Trajectory
from rlrun.plugins.rollouts.agent.rollout import Agent, AgentParams
from rlrun.plugins.session import Session
from rlrun.plugins.types import Group, Prompt, Row, VersionSpan
from rlrun.runner.contracts.carriers import GenerateRequest
from rlrun.runner.contracts.interfaces import RolloutContext
from rlrun.runner.host.garbage import rare_collections
from rlrun.runner.rollouts.filtering import Filters
from rlrun.runner.rollouts.group_producer import GroupProducer
from rlrun.runner.rollouts.tally import Tally
from tests.resolved_specs import resolved_rollout

TURNS, ANSWER_TOKENS, SECONDS = 8, 64, 1.0
"""Turns of an execution, tokens of an answer, and seconds of an answer and of the pause after it."""
LOST_TURN = 3
QUESTION = "how does it go on?"
ANSWERS = np.random.default_rng(0).integers(97, 123, (10_007, ANSWER_TOKENS), dtype=np.int32)
ANSWERS[:, -1] = END


class SleepingEngine:
    """Answers letters that depend on the seed, and remembers them."""

    def __init__(self) -> None:
        self.answers: defaultdict[int, list[tuple[int, ...]]] = defaultdict(list)
        """The answers of each prompt, in order."""

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        await asyncio.sleep(SECONDS)
        tokens = ANSWERS[request.seeds[0] % len(ANSWERS)]
        self.answers[request.prompt_index].append(tuple(tokens.tolist()))
        log_probs = np.full(ANSWER_TOKENS, -1.0, dtype=np.float32)
        return [Generation(tokens, log_probs, "stop", (VersionSpan(0, 0, ANSWER_TOKENS),))]

    async def abort(self, request: GenerateRequest) -> None:
        """An execution that hangs has no open request."""


def fate(number: int) -> str:
    """Returns what happens to an execution: it is killed, it hangs, or it ends."""
    return {3: "killed", 13: "hung"}.get(number % 20, "ends")


async def lose(number: int, turn: int) -> None:
    """Ends or stops the executions that are lost."""
    if turn == LOST_TURN and fate(number) == "killed":
        raise InfrastructureError("the sandbox was killed")
    if turn == LOST_TURN and fate(number) == "hung":
        await asyncio.Event().wait()


class SleepingEnvironment:
    """A rollout in the driver's event loop."""

    async def run(self, session: Session) -> Trajectory:
        trajectory = Trajectory(session.prompt.tokens)
        for turn in range(TURNS):
            await lose(session.prompt.index, turn)
            trajectory.add(await session.generate(trajectory.tokens()))
            await asyncio.sleep(SECONDS)
            _, question = session.chat.follow_up([{"role": "user", "content": QUESTION}])
            trajectory.give(question)
        return trajectory


class OtherProcess:
    """An agent whose clients are in another process, so that their CPU time is not the driver's."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._loop = asyncio.get_running_loop()
        self._ends: dict[str, asyncio.Future[str]] = {}
        threading.Thread(target=self._read, daemon=True).start()

    async def run(self, task: AgentTask) -> None:
        end = self._ends[task.id] = self._loop.create_future()
        self._pipe.send((task.id, task.base_url, task.api_key, list(task.messages)))
        if problem := await end:
            raise InfrastructureError(problem)

    def _read(self) -> None:
        while True:
            name, problem = self._pipe.recv()
            self._loop.call_soon_threadsafe(self._end, name, problem)

    def _end(self, name: str, problem: str) -> None:
        if not (end := self._ends[name]).done():
            end.set_result(problem)


def clients(pipe: Connection) -> None:
    """The process of the clients."""
    asyncio.run(_serve_clients(pipe))


async def _serve_clients(pipe: Connection) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as http:
        running = set()
        while (task := await asyncio.to_thread(pipe.recv)) is not None:
            running.add(asyncio.create_task(_client(http, pipe, task)))
        for client in running:
            client.cancel()


async def _client(
    http: aiohttp.ClientSession, pipe: Connection, task: tuple[str, str, str, list[Any]]
) -> None:
    name, url, key, messages = task
    problem, number = "", int(name.partition("-")[0])
    try:
        for turn in range(TURNS):
            await lose(number, turn)
            body = {"model": "policy", "messages": messages}
            headers = {"Authorization": f"Bearer {key}"}
            async with http.post(f"{url}/chat/completions", json=body, headers=headers) as response:
                answer = (await response.json())["choices"][0]["message"]
            await asyncio.sleep(SECONDS)
            messages = [*messages, answer, {"role": "user", "content": QUESTION}]
    except InfrastructureError as error:
        problem = str(error)
    pipe.send((name, problem))


def main() -> None:
    """Measures each way in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--executions", type=int, default=1000)
    parser.add_argument("--deadline", type=float, default=150.0, help="rollout.request_timeout, in seconds")
    parser.add_argument("--one", choices=("session", "endpoint"), help="a single measurement")
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(asyncio.run(measure(chosen.one, chosen.executions, chosen.deadline))))
        return
    rows = []
    for way in ("session", "endpoint"):
        command = [sys.executable, "-m", "benchmarks.many_executions", "--one", way]
        command += ["--executions", str(chosen.executions), "--deadline", str(chosen.deadline)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=900)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
    print(json.dumps({"turns": TURNS, "answer_tokens": ANSWER_TOKENS, "rows": rows}, indent=1))


async def measure(way: str, executions: int, deadline: float) -> dict[str, Any]:
    """Runs all executions at once, and returns the figures. Those that hang end at `deadline`, in seconds."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    here, there = multiprocessing.get_context("spawn").Pipe()
    rollout: Any = SleepingEnvironment()
    if way == "endpoint":
        multiprocessing.get_context("spawn").Process(target=clients, args=(there,), daemon=True).start()
        rollout = Agent(AgentParams(command=("none",)))
        rollout._agent = OtherProcess(here)
    engine, tally = SleepingEngine(), Tally()
    limits = {"samples_per_prompt": 1, "max_response_tokens": 4096, "request_timeout": deadline}
    grader = NoWork()
    context = RolloutContext(engine, LetterChat(), grader, seed=0, rollout=rollout, deterministic=False)  # type: ignore[arg-type]
    producer = GroupProducer(resolved_rollout(**limits), context, Filters([]))
    prompts = [prompt(number) for number in range(executions)]
    process, peak = psutil.Process(), Peak()
    with rare_collections(), peak:
        before, started = process.cpu_times(), time.perf_counter()
        groups = await asyncio.gather(*(producer.produce(one, lambda: tally) for one in prompts))
        after, seconds = process.cpu_times(), time.perf_counter() - started
    here.send(None)
    turns = sum(map(len, engine.answers.values()))
    cpu = after.user + after.system - before.user - before.system
    return {
        "way": way,
        "executions": executions,
        "ended": sum(group is not None for group in groups),
        "expected": sum(fate(number) == "ends" for number in range(executions)),
        "failed": {str(kind): count for kind, count in tally.failures.items()},
        "late": tally.dropped_samples["generation", "timeout"],
        "exact": all(is_exact(group, engine.answers) for group in groups if group is not None),
        "turns": turns,
        "driver_us_per_turn": round(1e6 * cpu / turns, 1),
        "kib_per_execution": round(peak.growth / executions / 1024, 1),
        "seconds": round(seconds, 1),
    }


def is_exact(group: Group, answers: dict[int, list[tuple[int, ...]]]) -> bool:
    """Returns whether a sample has its own id, and trains exactly what the engine returned for its prompt."""
    [sample] = group.samples
    trained = tuple(sample.tokens[sample.loss_mask > 0].tolist())
    expected = tuple(token for answer in answers[group.prompt.index] for token in answer)
    return (
        sample.id == f"{group.prompt.index}-0"
        and trained == expected
        and len(expected) == TURNS * ANSWER_TOKENS
    )


def prompt(number: int) -> Prompt:
    """Returns a question."""
    messages = [{"role": "user", "content": f"question {number}"}]
    return Prompt(Row(str(number), messages), number, LetterChat().render(messages))


class Peak:
    """The largest growth of this process's resident memory during the block."""

    def __enter__(self) -> "Peak":
        self._process, self._ended = psutil.Process(), threading.Event()
        self._before = self._largest = self._process.memory_info().rss
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._ended.wait(0.2):
            self._largest = max(self._largest, self._process.memory_info().rss)

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def growth(self) -> int:
        """Bytes."""
        return self._largest - self._before


if __name__ == "__main__":
    main()

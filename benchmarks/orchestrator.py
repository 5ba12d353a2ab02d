"""What one sample costs the driver, with 1,000 and 10,000 requests in flight.

    python benchmarks/orchestrator.py

`loop`: rollout source, executions, sessions, filters and metrics, on engines in the same process.
`channel`: the same through pool and client, on a sleeping engine in a process of its own, which is called as
rlrun's own engines are. `http`: with a request for each call, as to SGLang. `bare`: the bodies and answers of
`http` by aiohttp and orjson alone, the floor of any HTTP client in Python. Every figure is of
a fresh process: CPU time of the driver's process alone, and its growth in resident memory from before the
first request to the end of the batch. Rewards and tokenizer answer at once: their work is not the loop's.
Python collects garbage as in the driver of a job.
Prints one JSON object.
"""

import argparse
import asyncio
import json
import multiprocessing
import resource
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import aiohttp
import numpy as np
import orjson
import psutil

from benchmarks.sleeping_engine import SleepingServer, SleepingSetup
from rlrun.plugins.generation import Generation
from rlrun.plugins.rollouts.single_turn import SingleTurn, SingleTurnParams
from rlrun.plugins.types import Prompt, Row, Sample, VersionSpan
from rlrun.runner.contracts.carriers import GenerateRequest
from rlrun.runner.contracts.interfaces import Engines, RolloutContext
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.client.wire import generate_body
from rlrun.runner.engines.pool.pool import EnginePool
from rlrun.runner.host.garbage import rare_collections
from rlrun.runner.prompts.prefetcher import Prefetcher
from rlrun.runner.rollouts.filtering import Filters
from rlrun.runner.rollouts.settings import rollout_settings
from rlrun.runner.rollouts.synchronous import SynchronousSource
from rlrun.specs.sections.rollout import RolloutSpec
from tests.resolved_specs import resolved_rollout

PROMPT_TOKENS, RESPONSE_TOKENS = 128, 256
WAYS = ("loop", "channel", "http", "bare")
SIZES = ((1_000, 8), (1_000, 1), (10_000, 1))
"""Requests in flight, samples of each."""
JSON = {"Content-Type": "application/json"}
SECONDS = 20.0
"""How long every response takes: longer than it takes to ask for all of them."""


class OneByOne:
    """Engines that answer one request in each round of the event loop, once all are in flight."""

    def __init__(self, requests: int) -> None:
        self._requests = requests
        self._turns: deque[asyncio.Future[None]] = deque()

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._turns.append(turn)
        self._requests -= 1
        if not self._requests:
            self._turns.popleft().set_result(None)
        await turn
        if self._turns:
            loop.call_soon(self._turns.popleft().set_result, None)
        return [
            Generation(
                np.full(RESPONSE_TOKENS, 7, dtype=np.int32),
                np.full(RESPONSE_TOKENS, -1.0, dtype=np.float32),
                "stop",
                (VersionSpan(0, 0, RESPONSE_TOKENS),),
            )
            for _ in request.seeds
        ]


class NoWork:
    """A tokenizer and a grader that cost nothing."""

    def decode_batch(self, batch: Sequence[Any], *, special: bool = False) -> list[str]:
        return [""] * len(batch)

    async def score(self, samples: Sequence[Sample]) -> None:
        for number, sample in enumerate(samples):
            sample.reward = float(number % 2)


def main() -> None:
    """Every way in turn, `--rounds` times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", nargs=3, metavar=("WAY", "REQUESTS", "SAMPLES"), help="a single measurement")
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(measure(chosen.one[0], int(chosen.one[1]), int(chosen.one[2]))))
        return
    cases = [(way, *size) for size in SIZES for way in chosen.ways]
    found: dict[tuple[str, int, int], list[dict[str, float]]] = {case: [] for case in cases}
    for _ in range(chosen.rounds):
        for case in cases:
            command = [sys.executable, __file__, "--one", *map(str, case)]
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
            found[case].append(json.loads(done.stdout.splitlines()[-1]))
    rows = []
    for (way, requests, samples), rounds in found.items():
        figures = {key: round(statistics.median(one[key] for one in rounds), 2) for key in rounds[0]}
        rows.append({"way": way, "requests": requests, "samples_per_request": samples} | figures)
    print(
        json.dumps(
            {"prompt_tokens": PROMPT_TOKENS, "response_tokens": RESPONSE_TOKENS, "rows": rows}, indent=1
        )
    )


def measure(way: str, requests: int, samples: int) -> dict[str, float]:
    """Microseconds and bytes for each sample."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if way == "loop":
        return asyncio.run(through_the_loop(OneByOne(requests), requests, samples))  # type: ignore[arg-type]
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    server = context.Process(target=serve, args=(there,), daemon=True)
    server.start()
    url = here.recv()
    try:
        if way == "bare":
            return asyncio.run(bare(url, requests, samples))
        return asyncio.run(over_http(url, requests, samples, own=way == "channel"))
    finally:
        here.send(None)
        server.join(60)


def serve(pipe: Connection) -> None:
    """The stub engine, until it is told to end."""
    setup = SleepingSetup(10**6, SECONDS / RESPONSE_TOKENS, RESPONSE_TOKENS, 0.0)
    server = SleepingServer(setup)
    pipe.send(server.start())
    pipe.recv()
    server.stop()


async def over_http(url: str, requests: int, samples: int, *, own: bool) -> dict[str, float]:
    async with EngineClient(url, own=own) as client:
        return await through_the_loop(EnginePool([client]), requests, samples)


async def through_the_loop(engines: Engines, requests: int, samples: int) -> dict[str, float]:
    """One batch of so many groups."""
    policy = RolloutContext(
        engines,
        NoWork(),  # type: ignore[arg-type]
        NoWork(),
        seed=0,
        rollout=SingleTurn(SingleTurnParams()),
        deterministic=False,
    )
    prompts = read_ahead(requests)
    source = SynchronousSource(spec_of(requests, samples), policy, prompts, Filters([]))
    await prompts.next()  # the first batch is read; the measured one is read ahead
    await asyncio.sleep(0.1)
    with rare_collections(), Measured(requests * samples) as measured:
        batch = await source.next(0)
        batch.measure()
    assert sum(len(group.samples) for group in batch.groups) == requests * samples
    await source.close()
    return measured.figures


async def bare(url: str, requests: int, samples: int) -> dict[str, float]:
    """The same bytes without anything of rlrun."""
    sampling = rollout_settings(spec_of(requests, samples)).sampling
    prompts = [prompt(index) for index in range(requests)]
    bodies = [
        generate_body([GenerateRequest(f"r{one.index}", one.tokens, tuple(range(samples)), sampling)])
        for one in prompts
    ]
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        connector=connector, timeout=aiohttp.ClientTimeout(total=None)
    ) as session:

        async def ask(body: bytes) -> Any:
            async with session.post(f"{url}/generate", data=body, headers=JSON) as response:
                response.raise_for_status()
                return orjson.loads(await response.read())

        with rare_collections(), Measured(requests * samples) as measured:
            answers = await asyncio.gather(*map(ask, bodies))
    assert sum(map(len, answers)) == requests * samples
    return measured.figures


class Measured:
    """CPU time and memory of this process over a block, for each sample."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self.figures: dict[str, float] = {}

    def __enter__(self) -> "Measured":
        self._memory = psutil.Process().memory_info().rss
        self._seconds = time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        seconds = time.process_time() - self._seconds
        memory = psutil.Process().memory_info().rss - self._memory
        self.figures = {
            "microseconds": seconds / self._samples * 1e6,
            "kilobytes": memory / self._samples / 1000,
        }


def spec_of(requests: int, samples: int) -> RolloutSpec:
    return resolved_rollout(
        batch_size=requests,
        samples_per_prompt=samples,
        max_response_tokens=2 * RESPONSE_TOKENS,
        max_prompt_tokens=PROMPT_TOKENS,
    )


def read_ahead(count: int) -> Prefetcher[Prompt]:
    """Batches of prompts that are tokenised already."""
    batches = [[prompt(batch * count + number) for number in range(count)] for batch in range(3)]
    left = iter(batches)
    return Prefetcher(lambda: next(left), dict, lambda state: None)


def prompt(index: int) -> Prompt:
    return Prompt(Row(str(index), "prompt"), index, np.full(PROMPT_TOKENS, index % 1000, dtype=np.int32))


if __name__ == "__main__":
    main()

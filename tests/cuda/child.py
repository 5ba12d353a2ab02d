"""Runs functions on a pretended GPU, and answers with what they did: one line of JSON for each.

{"module": "tests.cuda.trainer_trace", "arguments": {…}}
  └─ a fork of this process, which has everything imported: module.trace(end_phase, …)
       └─▶ {"phases": {…}, "result": …, "defects": {…}, "error": …, "seconds": …}
"""

import json
import os
import sys
import time
import traceback
from importlib import import_module
from typing import Any

from tests.cuda import fake_cuda
from tests.cuda.recording import RECORDING

WARM = (
    "torch._dynamo",
    "torch.distributed.pipelining",
    "transformers",
    "tests.cuda.trainer_trace",
    "tests.cuda.engine_trace",
    "tests.cuda.carrier_trace",
)
"""Modules that are imported once, for all forks."""


def main() -> None:
    """Answers one question after the other, until standard input ends."""
    fake_cuda.install(RECORDING)
    for module in WARM:
        import_module(module)
    for line in sys.stdin:
        reading, writing = os.pipe()
        if not os.fork():
            text = json.dumps(answer(**json.loads(line)))
            with os.fdopen(writing, "w") as pipe:
                pipe.write(text)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            text = pipe.read()
        os.wait()
        sys.stdout.write((text or json.dumps({"error": "the process died"})) + "\n")
        sys.stdout.flush()


def answer(module: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Returns what a module's `trace` returned and did; `error` is None, or says where it failed.

    `trace` calls its first argument with a phase's name at the end of the phase.
    """
    phases: dict[str, Any] = {}
    result = error = None

    def end_phase(name: str) -> None:
        phases[name] = RECORDING.take()

    try:
        result = import_module(module).trace(end_phase, **arguments)
    except Exception as failure:
        error = own_lines(failure)
    return {
        "phases": phases,
        "result": result,
        "defects": dict(RECORDING.defects),
        "error": error,
        "seconds": time.process_time(),
    }


def own_lines(failure: Exception) -> str:
    """Returns an exception with the lines of rlrun and of the tests that led to it, and the last one."""
    frames = traceback.extract_tb(failure.__traceback__)
    shown = [frame for frame in frames[:-1] if "/site-packages/" not in frame.filename] + frames[-1:]
    return "".join([*traceback.format_list(shown), *traceback.format_exception_only(failure)])


if __name__ == "__main__":
    main()

"""`python -m rlrun.runner.engines.native --model FOLDER --port 30000`: the native engine alone."""

import argparse
import signal
import sys
from typing import get_args

from rlrun.runner.engines.native.server import NativeServer
from rlrun.runner.engines.setup import EngineSetup


def main(arguments: list[str] | None = None) -> int:
    """Serve until SIGINT or SIGTERM. 0 after a clean stop, 2 for a setup that cannot work."""
    server = NativeServer(_setup(arguments))
    stop = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, stop)
    try:
        print(f"serving on {server.start()}", flush=True)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    signal.sigwait(stop)
    server.stop()
    return 0


def _setup(arguments: list[str] | None) -> EngineSetup:
    parser = argparse.ArgumentParser(prog="python -m rlrun.runner.engines.native", description=__doc__)
    parser.add_argument("--model", required=True, help="folder in Hugging Face format")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, help="default: a free one")
    parser.add_argument("--max-running", type=int, default=256, help="samples decoded together")
    parser.add_argument("--max-cache-tokens", type=int, help="tokens of KV cache")
    parser.add_argument("--max-length", type=int, help="prompt and response together")
    parser.add_argument("--threads", type=int, help="CPU threads of the computation")
    parser.add_argument("--seed", type=int, default=0, help="of requests without a seed")
    parser.add_argument("--device", default="auto", choices=get_args(EngineSetup.__annotations__["device"]))
    chosen = vars(parser.parse_args(arguments))
    return EngineSetup(model_folder=chosen.pop("model"), **chosen)


if __name__ == "__main__":
    sys.exit(main())

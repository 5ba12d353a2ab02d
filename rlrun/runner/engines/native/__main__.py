"""`python -m rlrun.runner.engines.native --model FOLDER --port 30000`: the native engine alone.

It asks its clients for a key: the one in `--api-key-file`, or a new one that it prints.
"""

import argparse
import os
import secrets
import signal
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import get_args

from rlrun.runner.engines.native.engine.setup import EngineSetup
from rlrun.runner.engines.native.http.server import NativeServer


def main(arguments: list[str] | None = None) -> int:
    """Serve until SIGINT or SIGTERM. 0 after a clean stop, 2 for a setup that cannot work."""
    stop = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, stop)
    try:
        setup, key_file = _setup(arguments)
        server = NativeServer(setup)
        print(f"serving on {server.start()}", flush=True)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"its key is {f'in {key_file}' if key_file else setup.api_key}", flush=True)
    signal.sigwait(stop)
    server.stop()
    return 0


def _setup(arguments: list[str] | None) -> tuple[EngineSetup, Path | None]:
    """The setup, and the file of its key where there is one. ValueError where others may read that."""
    parser = argparse.ArgumentParser(prog="python -m rlrun.runner.engines.native", description=__doc__)
    parser.add_argument("--model", required=True, help="folder in Hugging Face format")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument(
        "--head-dtype", default="model", choices=["model", "float32"], help="precision of logits"
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, help="default: a free one")
    parser.add_argument("--max-running", type=int, default=256, help="samples decoded together")
    parser.add_argument("--max-cache-tokens", type=int, help="tokens of KV cache")
    parser.add_argument("--max-length", type=int, help="prompt and response together")
    parser.add_argument("--threads", type=int, help="CPU threads of the computation")
    parser.add_argument("--seed", type=int, default=0, help="of requests without a seed")
    parser.add_argument("--device", default="auto", choices=get_args(EngineSetup.__annotations__["device"]))
    parser.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="holds the key that clients need; made, for you alone to read, where it does not exist",
    )
    parser.add_argument(
        "--weights",
        action="append",
        default=[],
        metavar="FOLDER",
        help="update_weights_from_disk may read folders below this one too; may be repeated",
    )
    chosen = vars(parser.parse_args(arguments))
    key_file = chosen.pop("api_key_file")
    key = secrets.token_hex(16) if key_file is None else read_key(key_file)
    folders = tuple(chosen.pop("weights"))
    model = chosen.pop("model")
    return EngineSetup(model_folder=model, api_key=key, weight_folders=folders, **chosen), key_file


def read_key(path: Path) -> str:
    """The key in a file, which is made with a new one where it does not exist. ValueError where other users
    may read or write it, or it is empty.
    """
    with suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{secrets.token_hex(16)}\n")
    with path.open() as file:
        status = os.fstat(file.fileno())
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise ValueError(f"{path} may be read or written by others: chmod 600 {path}")
        key = file.read().strip()
    if not key:
        raise ValueError(f"{path} holds no key: delete it, and a new one is made")
    return key


if __name__ == "__main__":
    sys.exit(main())

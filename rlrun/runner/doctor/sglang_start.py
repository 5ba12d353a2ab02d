"""Starts an SGLang server of a tiny random model, as a job would, and lets it generate."""

import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.request import ProxyHandler, Request, build_opener

from rlrun.runner.contracts.errors import EngineError
from rlrun.runner.engines.sglang.server import SglangServer
from rlrun.runner.engines.sglang.setup import SglangSetup

START_SECONDS = 300.0
"""The first start on a host compiles kernels."""
_TINY_QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "eos_token_id": 1,
    "torch_dtype": "bfloat16",
}
_ARGUMENTS = {"load_format": "dummy", "skip_tokenizer_init": True, "mem_fraction_static": 0.2}
_KEY = "doctor"


def start_sglang(
    python: str,
    device: Literal["cpu", "cuda"] = "cuda",
    arguments: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> dict[str, float] | str:
    """Returns the seconds that the server of this interpreter took to start and to generate 8 tokens, or the
    reason why it did not.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(_TINY_QWEN3))
        server = SglangServer(
            SglangSetup(
                python=python,
                model_folder=name,
                dtype="bfloat16",
                max_running=8,
                max_cache_tokens=4096,
                max_length=512,
                log=folder / "server.log",
                secrets=folder / "server.keys.yaml",
                api_key=_KEY,
                device=device,
                arguments={**_ARGUMENTS, **(arguments or {})},
                environment=environment or {},
                start_timeout=START_SECONDS,
            )
        )
        begin = time.monotonic()
        try:
            _generate(server.start())
        except (EngineError, TimeoutError, OSError, ValueError) as error:
            return str(error)
        finally:
            server.stop()
        return {"seconds": time.monotonic() - begin}


def _generate(url: str) -> None:
    """Asks for 8 tokens. Raises ValueError where the answer does not have them."""
    body = {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 8, "ignore_eos": True}}
    headers = {"Authorization": f"Bearer {_KEY}", "Content-Type": "application/json"}
    request = Request(f"{url}/generate", json.dumps(body).encode(), headers)
    with build_opener(ProxyHandler({})).open(request, timeout=120) as response:
        answer = json.load(response)
    if len(answer.get("output_ids", ())) != 8:
        raise ValueError(f"the server generated {answer.get('output_ids')} instead of 8 tokens")

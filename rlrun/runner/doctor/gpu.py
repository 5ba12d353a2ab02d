"""Examines this host's GPUs: driver, speed, access between them, NCCL, CUDA IPC and SGLang's start.

The speeds are judged against the makers' figures, in pure functions.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.request import ProxyHandler, Request, build_opener

from rlrun.runner.contracts.errors import EngineError
from rlrun.runner.doctor.check import Check, Verdict
from rlrun.runner.doctor.installation import ask_torch, check_torch_and_gpus
from rlrun.runner.engines.sglang.server import SglangServer
from rlrun.runner.engines.sglang.setup import SglangSetup
from rlrun.runner.planning.hardware import Device, driver_gpus, local_gpu
from rlrun.runner.planning.step_time import HOST_LINK
from rlrun.specs.reading.engine_types import is_installed
from rlrun.specs.safe_python import own_python

_SECONDS = 120.0
"""How long one measurement may take, the import of torch included."""
GOOD_SHARE = 0.6
"""The share of a maker's figure that a healthy GPU exceeds: large products reach 0.75 to 0.85 of it, copies
0.85 to 0.95."""
BAD_SHARE = 0.2
"""Below this share something is broken, or another program uses the GPU."""
_SLOW = "check nvidia-smi for other programs, its clocks and its power limit (nvidia-smi -q -d PERFORMANCE)"
_SLOW_LINK = "check the slot's width and generation (nvidia-smi -q -d PCIE), and that processes run near it"
_NO_SHARING = (
    "in a container use --ipc=host; unset PYTORCH_CUDA_ALLOC_CONF=expandable_segments; otherwise weights "
    'must go through host memory or a disk (engine.weight_sync = "disk")'
)
_NO_NCCL = (
    "NCCL_DEBUG=INFO shows the cause; in a container use --shm-size=8g --ipc=host; where the IOMMU or ACS is "
    "on, try NCCL_P2P_DISABLE=1"
)
_SCALES = {"TFLOP/s": 1e12, "GB/s": 1e9}
Answer = Mapping[str, Any] | str
"""What a measurement found, or the reason why it failed."""
_START_SECONDS = 300.0
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


def examine_gpus(sglang_python: str | None) -> Iterator[Check]:
    """Yields every check of this host's GPUs; on a host without any, only that of the driver.

    `sglang_python` is an interpreter whose environment has SGLang; None: this one, if it has it.
    """
    driver = driver_gpus()
    yield check_driver(driver, _driver_version())
    if not driver:
        return
    torch = ask_torch()
    yield from (check for check in check_torch_and_gpus(torch, driver) if check.subject != "NCCL")
    if isinstance(torch, str) or not torch["cuda"]:
        return
    gpu, gpus = local_gpu(), torch["gpus"]
    assert isinstance(gpus, list)
    for index in range(len(gpus)):
        yield from check_speed(index, measure("speed", str(index)), gpu)
    yield check_peers(measure("peers"), len(gpus))
    yield check_shared_memory_of_gpus(measure("shared_buffer"))
    yield check_collectives(measure_collectives(len(gpus)), len(gpus), _version(torch["nccl"]), gpu)
    if sglang_python is None and not is_installed("sglang"):
        cure = "--sglang-python names the environment that has it (engine.python in a spec)"
        yield Check("SGLang start", "note", "not tried: SGLang is not installed here", cure)
    else:
        yield check_sglang_start(start_sglang(sglang_python or sys.executable))


def measure(name: str, *arguments: str) -> Answer:
    """Returns what a measurement found, or the reason why it failed."""
    [answer] = _run([[name, *arguments]])
    return answer


def measure_collectives(ranks: int) -> Answer:
    """Returns the bus bandwidth of a sum over this many ranks, each on a GPU of its own."""
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        answers = _run([["all_reduce", str(rank), str(ranks), store] for rank in range(ranks)])
    failed = [answer for answer in answers if isinstance(answer, str)]
    return failed[0] if failed else answers[0]


def _run(commands: Sequence[Sequence[str]]) -> list[Answer]:
    """Runs measurements at the same time, each in its own process."""
    module = "rlrun.runner.doctor.measurements"
    processes = [
        subprocess.Popen(
            own_python("-m", module, *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for words in commands
    ]
    return [_answer(process) for process in processes]


def _answer(process: subprocess.Popen[str]) -> Answer:
    try:
        output, errors = process.communicate(timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"no answer within {_SECONDS:.0f} s"
    if process.returncode:
        return (errors.strip() or f"ended with exit code {process.returncode}").splitlines()[-1]
    answer: dict[str, Any] = json.loads(output.splitlines()[-1])
    return answer


def _driver_version() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.split()[
            0
        ]
    except (OSError, subprocess.SubprocessError, IndexError):
        return ""


def _version(nccl: object) -> str:
    return ".".join(map(str, nccl)) if isinstance(nccl, list) else "without a version"


def check_driver(gpus: list[str], version: str) -> Check:
    """Checks that the driver lists GPUs. `version` is empty where it does not answer."""
    if not gpus:
        found = "nvidia-smi finds no GPU: this host has none, or no working driver"
        cure = "install NVIDIA's driver, or give the container GPUs (docker run --gpus all); jobs run on "
        return Check("driver", "bad", found, cure + "the CPU with cluster.gpus_per_node = 0")
    return Check("driver", "ok", f"{version}; {len(gpus)} GPU(s): {', '.join(sorted(set(gpus)))}")


def check_speed(index: int, answer: Answer, gpu: Device | None) -> Iterator[Check]:
    """Compares one GPU's product and copies with the figures of its kind; `gpu` is None for unknown kinds."""
    subject = f"GPU {index}"
    if isinstance(answer, str):
        yield Check(subject, "bad", f"cannot be used: {answer}", "nvidia-smi -q names its errors")
        return
    flops, bandwidth = (None, None) if gpu is None else (gpu.flops, gpu.bandwidth)
    yield check_figure(f"{subject} product", answer["flops"], flops, "TFLOP/s", _SLOW)
    yield check_figure(f"{subject} copy", answer["within"], bandwidth, "GB/s", _SLOW)
    yield check_figure(f"{subject} from host", answer["to_device"], HOST_LINK, "GB/s", _SLOW_LINK)
    yield check_figure(f"{subject} to host", answer["to_host"], HOST_LINK, "GB/s", _SLOW_LINK)


def check_figure(subject: str, measured: float, expected: float | None, unit: str, cure: str) -> Check:
    """Compares a measured speed with the expected one; both are operations or bytes per second."""
    scale = _SCALES[unit]
    if expected is None:
        return Check(
            subject, "note", f"{measured / scale:,.0f} {unit}", "rlrun does not know this kind of GPU"
        )
    share = measured / expected
    found = f"{measured / scale:,.0f} {unit}, {share:.0%} of {expected / scale:,.0f}"
    verdict: Verdict = "ok" if share >= GOOD_SHARE else "note" if share >= BAD_SHARE else "bad"
    return Check(subject, verdict, found, "" if verdict == "ok" else cure)


def check_peers(answer: Answer, count: int) -> Check:
    """Checks that every GPU can access every other GPU's memory."""
    if isinstance(answer, str):
        return Check("peer access", "bad", answer, "nvidia-smi topo -m shows how the GPUs are connected")
    if count == 1:
        return Check("peer access", "ok", "one GPU: nothing to access")
    pairs = answer["without_access"]
    if pairs:
        first, second = pairs[0]
        found = f"{len(pairs)} pairs without it, as {first} -> {second}: they copy through host memory"
        return Check("peer access", "note", found, "nvidia-smi topo -m shows how the GPUs are connected")
    return Check("peer access", "ok", f"between all {count} GPUs")


def check_shared_memory_of_gpus(answer: Answer) -> Check:
    """Checks that another process reads what this one wrote into a GPU's memory."""
    if isinstance(answer, str):
        return Check("CUDA IPC", "bad", f"fails: {answer}", _NO_SHARING)
    if answer["read"] != answer["written"]:
        found = f"another process read {answer['read']} instead of {answer['written']}"
        return Check("CUDA IPC", "bad", found, _NO_SHARING)
    return Check("CUDA IPC", "ok", "another process reads what this one wrote")


def check_collectives(answer: Answer, count: int, version: str, gpu: Device | None) -> Check:
    """Checks NCCL over all GPUs, and its speed where there are several."""
    if isinstance(answer, str):
        return Check("NCCL", "bad", f"{version} fails: {answer}", _NO_NCCL)
    if count == 1:
        return Check("NCCL", "ok", f"{version} starts; with one GPU nothing is sent")
    speed = check_figure("NCCL", answer["bus"], None if gpu is None else gpu.link, "GB/s", _NO_NCCL)
    # a host without NVLink is slow, not broken
    verdict: Verdict = "note" if speed.verdict == "bad" else speed.verdict
    return Check("NCCL", verdict, f"{version}, {count} GPUs: {speed.found}", speed.cure)


def check_sglang_start(answer: Answer) -> Check:
    """Checks that an SGLang server starts on a GPU and generates."""
    if isinstance(answer, str):
        cure = "its log says more; docs/sglang.md says which version rlrun is tested with"
        return Check("SGLang start", "bad", answer, cure)
    return Check("SGLang start", "ok", f"answers after {answer['seconds']:.0f} s")


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
                start_timeout=_START_SECONDS,
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

"""Conversions against `cp` of the same bytes, in gigabytes of source a second, and the memory they take.

    python benchmarks/convert.py [--gigabytes 2] [--folder DIR] [--rounds 3]

Sources are in the page cache for all sides, targets are new files, and each side is timed until its files are
on the disk (`cp` with fsync of what it wrote). Every conversion is a process of its own, forked with torch
imported, and timed from planning to the folder's final name; its peak memory is that process's. `torch` is
what one would write by hand: the safetensors library's mapped tensors into dcp.save, and dcp.load into
save_file; it holds the whole model. One JSON object; quote the shares of cp.
"""

import argparse
import json
import multiprocessing
import resource
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import torch

CONFIG = {
    "model_type": "qwen3",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 32000,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}
"""A Qwen3-1.7B with a smaller vocabulary; as many layers as the size asks for."""
SHARD_BYTES = 10**9
FORK = multiprocessing.get_context("forkserver")
SIDES = (
    "cp hf",
    "hf-to-dcp",
    "hf-to-dcp torch",
    "cp dcp",
    "dcp-to-hf",
    "dcp-to-hf torch",
    "cast",
    "fp8-block",
    "fp8-block back",
)


def main() -> None:
    """Print one JSON object."""
    options = arguments()
    FORK.set_forkserver_preload(["torch.distributed.checkpoint", "safetensors.torch"])
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        report = compare(Path(folder), options)
    print(json.dumps(report))


def arguments() -> argparse.Namespace:
    """Reads the arguments of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=2)
    parser.add_argument("--folder", type=Path, help="where to work; a temporary folder by default")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sides", nargs="*", choices=SIDES, default=[], help="these and cp alone")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", type=float, default=4, help="GiB")
    return parser.parse_args()


def compare(folder: Path, options: argparse.Namespace) -> dict[str, object]:
    """All sides in turn, `rounds` times; the first round, which warms the page cache, is not counted."""
    make_model(folder / "hf", options.gigabytes * 1e9)
    run_side("hf-to-dcp", folder / "hf", folder / "dcp", options)
    run_side("fp8-block", folder / "hf", folder / "fp8", options)
    sides = [side for side in SIDES if not options.sides or side in options.sides or side.startswith("cp")]
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for _ in range(options.rounds + 1):
        for side in sides:
            source = "dcp" if side.startswith(("dcp", "cp dcp")) else "fp8" if side.endswith("back") else "hf"
            runs[side].append(run_side(side, folder / source, folder / "out", options))
            shutil.rmtree(folder / "out")
    size = sum(path.stat().st_size for path in (folder / "hf").iterdir())
    rates = {
        side: size / statistics.median(run["seconds"] for run in found[1:]) / 1e9
        for side, found in runs.items()
    }
    peaks = {side: max(run["peak_bytes"] for run in found) / 2**30 for side, found in runs.items()}
    shares = {side: share(found[1:], runs[copied(side)][1:]) for side, found in runs.items()}
    return {
        "gigabytes": round(size / 1e9, 2),
        "threads": options.threads,
        "memory_set_gib": options.memory,
        "gigabytes_per_second": {side: round(rate, 2) for side, rate in rates.items()},
        "share_of_cp": {side: round(value, 2) for side, value in shares.items()},
        "peak_gib": {side: round(peak, 2) for side, peak in peaks.items() if not side.startswith("cp")},
    }


def copied(side: str) -> str:
    """The copy that a side is compared with: of the folder that it reads."""
    return "cp dcp" if side.startswith("dcp") or side == "cp dcp" else "cp hf"


def share(found: list[dict[str, float]], copies: list[dict[str, float]]) -> float:
    """Median over the rounds of the share of that round's own copy."""
    pairs = zip(found, copies, strict=True)
    return statistics.median(copy["seconds"] / run["seconds"] for run, copy in pairs)


def make_model(folder: Path, size: float) -> None:
    """Random bfloat16 weights in shards."""
    from rlrun.converters.families.model_folder import random_tensor
    from rlrun.converters.tensors.safetensors_format import TensorInfo, make_header, make_index, split_shards
    from rlrun.models.config_json import architecture
    from rlrun.models.tensor_names import hf_tensors

    layers, tensors = 0, []
    while sum(torch.Size(tensor.shape).numel() * 2 for tensor in tensors) < size:
        layers += 1
        model = architecture({**CONFIG, "num_hidden_layers": layers})
        tensors = hf_tensors(model)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": layers}))
    described = {tensor.name: TensorInfo(torch.bfloat16, tensor.shape) for tensor in tensors}
    by_name = {tensor.name: tensor for tensor in tensors}
    shards = split_shards(described, SHARD_BYTES)
    for file, names in shards.items():
        with (folder / file).open("wb") as stream:
            stream.write(make_header({name: described[name] for name in names})[0])
            for name in names:
                stream.write(random_tensor(by_name[name], model, 0).bfloat16().view(torch.uint8).numpy())
    (folder / "model.safetensors.index.json").write_bytes(make_index(described, shards))


def run_side(side: str, source: Path, target: Path, options: argparse.Namespace) -> dict[str, float]:
    """One side in a process of its own."""
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=measure, args=(side, source, target, options, theirs))
    process.start()
    if not ours.poll(600):
        raise TimeoutError(f"{side} did not end within 600 s")
    result: dict[str, float] = ours.recv()
    process.join()
    return result


def measure(side: str, source: Path, target: Path, options: argparse.Namespace, pipe: Connection) -> None:
    """Send seconds, and the peak memory of this process."""
    torch.set_num_threads(1)
    work = PREPARE[side](source, target, options)
    began = time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    pipe.send({"seconds": seconds, "peak_bytes": peak})


Prepare = Callable[[Path, Path, argparse.Namespace], Callable[[], object]]


def copy(source: Path, target: Path, _: argparse.Namespace) -> Callable[[], object]:
    """`cp -r`, and the files on the disk."""

    def work() -> None:
        subprocess.run(["cp", "-r", source, target], check=True)
        subprocess.run(["sync", *target.iterdir()], check=True)

    return work


def conversion(direction: str, **changes: object) -> Prepare:
    """Converts with rlrun."""

    def prepare(source: Path, target: Path, options: argparse.Namespace) -> Callable[[], object]:
        from rlrun.converters.convert.conversion import Options, plan_conversion
        from rlrun.converters.convert.copying import ResourceLimits
        from rlrun.converters.folders.locate import find_checkpoint

        limits = ResourceLimits(options.threads, int(options.memory * 2**30))
        settings = Options(shard_bytes=SHARD_BYTES, **changes)  # type: ignore[arg-type]

        def work() -> None:
            planned = plan_conversion(find_checkpoint(source), direction, settings)  # type: ignore[arg-type]
            planned.write(target, limits, lambda _: None, None)

        return work

    return prepare


def torch_to_dcp(source: Path, target: Path, _: argparse.Namespace) -> Callable[[], object]:
    """Mapped tensors into dcp.save."""
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import load_file

    def work() -> None:
        tensors = {}
        for path in sorted(source.glob("*.safetensors")):
            tensors |= load_file(path)
        dcp.save(tensors, checkpoint_id=target, no_dist=True)

    return work


def torch_to_hf(source: Path, target: Path, _: argparse.Namespace) -> Callable[[], object]:
    """dcp.load into memory, then save_file for each shard, on the disk."""
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import save_file

    def work() -> None:
        stored = dcp.FileSystemReader(source).read_metadata().state_dict_metadata
        tensors = {
            name: torch.empty(entry.size, dtype=entry.properties.dtype) for name, entry in stored.items()
        }
        dcp.load(tensors, checkpoint_id=source, no_dist=True)
        tensors.pop("lm_head.weight", None)
        target.mkdir()
        names = list(tensors)
        for shard in range(0, len(names), 100):
            save_file(
                {name: tensors[name] for name in names[shard : shard + 100]}, target / f"{shard}.safetensors"
            )
        subprocess.run(["sync", *target.iterdir()], check=True)

    return work


PREPARE: dict[str, Prepare] = {
    "cp hf": copy,
    "cp dcp": copy,
    "hf-to-dcp": conversion("dcp"),
    "dcp-to-hf": conversion("hf"),
    "hf-to-dcp torch": torch_to_dcp,
    "dcp-to-hf torch": torch_to_hf,
    "cast": conversion("hf", dtype=torch.float16),
    "fp8-block": conversion("hf", quantise="fp8-block"),
    "fp8-block back": conversion("hf", dequantise=True),
}


if __name__ == "__main__":
    main()

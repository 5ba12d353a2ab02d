"""The table of converted matrices in docs/low-precision.md is what the code converts.

Write it again with `.venv/bin/python -m tests.docs.test_low_precision_page`.
"""

import re

from rlrun.models.architecture import Architecture
from rlrun.models.config_json import architecture
from rlrun.models.low_precision import LowPrecision, kinds_of_matrices, layer_matrices
from tests.docs.pages import ROOT
from tests.runner.planning.test_memory import DEEPSEEK_V3, GPT_OSS_20B, QWEN3_8B, QWEN3_30B_A3B

PAGE = ROOT / "docs" / "low-precision.md"
SECTION = re.compile(r"(?<=<!-- matrices: begin -->\n).*?(?=<!-- matrices: end -->)", re.S)
LLAMA = {"rms_norm_eps": 1e-5, "max_position_embeddings": 131072, "head_dim": 128}
LLAMA_8B = architecture(
    LLAMA
    | {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
    | {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256}
)
QWEN2_7B = architecture(
    LLAMA
    | {"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28}
    | {"num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064}
)
MODELS = {
    "Llama-3.1-8B": LLAMA_8B,
    "Qwen2.5-7B": QWEN2_7B,
    "Qwen3-8B": QWEN3_8B,
    "Qwen3-30B-A3B": QWEN3_30B_A3B,
    "DeepSeek-V3": DEEPSEEK_V3,
    "gpt-oss-20b": GPT_OSS_20B,
}
PRECISIONS = {
    "rowwise": LowPrecision("float8"),
    "blockwise": LowPrecision("float8", "blockwise"),
    "mxfp8": LowPrecision("mxfp8"),
    "nvfp4": LowPrecision("nvfp4"),
}


def table() -> str:
    """The table: what each precision converts, and which precisions leave a matrix as it is."""
    lines = ["| model | converted | in bfloat16 |", "| --- | --- | --- |"]
    for name, model in MODELS.items():
        converts = {name: converted_by(model, precision) for name, precision in PRECISIONS.items()}
        keeping = {
            matrix: [name for name, converted in converts.items() if not converted[matrix]]
            for matrix in converts["rowwise"]
        }
        converted = [f"`{matrix}`" for matrix, kept in keeping.items() if len(kept) < len(PRECISIONS)]
        exceptions = [
            f"`{matrix}`" if len(kept) == len(PRECISIONS) else f"`{matrix}` ({', '.join(kept)})"
            for matrix, kept in keeping.items()
            if kept
        ]
        lines.append(f"| {name} | {', '.join(converted)} | {', '.join(exceptions)} |")
    return "\n".join(lines) + "\n"


def converted_by(model: Architecture, precision: LowPrecision) -> dict[str, bool]:
    """Whether each kind of matrix is converted, by its name within a layer."""
    matrices = kinds_of_matrices(layer_matrices(model, precision))
    return {matrix.pattern.removeprefix("model.layers.*."): matrix.reason is None for matrix in matrices}


def test_the_table_of_families() -> None:
    found = SECTION.search(PAGE.read_text("utf-8"))
    assert found is not None and found[0] == table()


if __name__ == "__main__":
    PAGE.write_text(SECTION.sub(lambda _: table(), PAGE.read_text("utf-8")), "utf-8")

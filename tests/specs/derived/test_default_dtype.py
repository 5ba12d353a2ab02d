"""The precision of trainer and engines where the spec leaves it open."""

from pathlib import Path
from typing import Any

import pytest

from rlrun.specs import processor
from rlrun.specs.derived.default_dtype import choose_dtypes, dtype_lines, with_dtypes
from rlrun.specs.processor import has_bfloat16
from rlrun.specs.reading import loading
from rlrun.specs.reading.loading import load_spec
from rlrun.specs.sections.job import Spec

BASE = Path(__file__).parents[1] / "base.toml"
SKYLAKE = (
    "processor\t: 0\nflags\t\t: fpu sse4_2 avx2 avx512f avx512bw avx512vl avx512_vnni\nbugs\t\t: spectre\n"
)
PROCESSORS = {
    "Skylake and Cascade Lake": (SKYLAKE, False),
    "Cooper Lake and Zen 4": (SKYLAKE.replace("avx512_vnni", "avx512_vnni avx512_bf16"), True),
    "Sapphire Rapids": (SKYLAKE.replace("avx512_vnni", "amx_tile amx_bf16"), True),
    "AVX2": ("flags\t\t: fpu avx avx2 fma\n", False),
    "a bug of that name": ("flags\t\t: fpu avx2\nbugs\t\t: avx512_bf16\n", False),
    "Neoverse V1": ("Features\t: fp asimd sve bf16 i8mm\n", True),
    "Graviton 2": ("Features\t: fp asimd aes\n", False),
    "unknown": ("", False),
}


@pytest.mark.parametrize("name", PROCESSORS)
def test_a_processor_multiplies_in_bfloat16(name: str) -> None:
    cpuinfo, native = PROCESSORS[name]
    assert has_bfloat16(cpuinfo) is native


@pytest.mark.parametrize(("pretended", "native"), [("", True), ("native", True), ("avx512", False)])
def test_a_pretended_processor_has_no_bfloat16(
    pretended: str, native: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("flags\t\t: fpu avx512f avx512_bf16\n")
    monkeypatch.setattr(processor, "_CPUINFO", file)
    monkeypatch.setenv(processor.PRETENDED_SET, pretended)
    assert processor.multiplies_bfloat16() is native


def dtypes(native: bool, **sections: Any) -> list[str]:
    spec = Spec.model_validate({"model": {"path": "m"}, "data": {}, **sections})
    spec = with_dtypes(spec, choose_dtypes(spec, native_bfloat16=native))
    return [spec.trainer.dtype, spec.engine.dtype, *(section.dtype for section in spec.engines)]


CHOICES: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "a CPU": ({}, ["bfloat16", "bfloat16"], ["float32", "float32"]),
    "GPUs": ({"cluster": {"gpus_per_node": 1}}, ["bfloat16"] * 2, ["bfloat16"] * 2),
    "given": (
        {"trainer": {"dtype": "bfloat16"}, "engine": {"dtype": "float32"}},
        ["bfloat16", "float32"],
        ["bfloat16", "float32"],
    ),
    "one given": ({"trainer": {"dtype": "float32"}}, ["float32", "bfloat16"], ["float32", "float32"]),
    "low precision": (
        {"trainer": {"precision": "int4_qat"}},
        ["bfloat16", "bfloat16"],
        ["bfloat16", "float32"],
    ),
    "true on-policy, the engine given": (
        {"true_on_policy": True, "engine": {"dtype": "float32"}},
        ["float32", "float32"],
        ["float32", "float32"],
    ),
    "true on-policy, the trainer given": (
        {"true_on_policy": True, "trainer": {"dtype": "bfloat16"}},
        ["bfloat16", "bfloat16"],
        ["bfloat16", "bfloat16"],
    ),
    "external engines": (
        {"engine": {"type": "external"}, "engines": [{"name": "judge", "type": "native"}]},
        ["bfloat16", "bfloat16", "bfloat16"],
        ["float32", "bfloat16", "float32"],
    ),
    "changed elements": (
        {"engine": {"weight_delta": "elements"}},
        ["bfloat16", "bfloat16"],
        ["float32", "bfloat16"],
    ),
}


@pytest.mark.parametrize("case", CHOICES)
def test_an_open_precision_follows_the_processor(case: str) -> None:
    sections, native, emulated = CHOICES[case]
    assert dtypes(True, **sections) == native
    assert dtypes(False, **sections) == emulated


def test_a_line_says_which_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "multiplies_bfloat16", lambda: False)
    why = "this processor has no instructions for bfloat16, which would be several times slower"
    assert load_spec([BASE]).dtype_reasons() == [f"trainer.dtype and engine.dtype are float32: {why}"]
    assert load_spec([BASE], ["engine.dtype=float32"]).dtype_reasons() == [f"trainer.dtype is float32: {why}"]
    assert load_spec([BASE], ["cluster.gpus_per_node=1"]).dtype_reasons() == []
    assert load_spec([BASE], ["debug.mode=rollout"]).choices(None)[-1] == f"engine.dtype is float32: {why}"
    given = load_spec([BASE], ["engine.dtype=float32", "trainer.dtype=bfloat16"])
    assert (given.dtype_reasons(), given.spec.trainer.dtype) == ([], "bfloat16")
    assert not list(dtype_lines(given.spec, {}))


@pytest.mark.parametrize(
    "overrides",
    [
        ["trainer.head_dtype=float32"],
        ["trainer.precision=int4_qat"],
        ["trainer.kept_logits=128"],
        ["true_on_policy=true", "trainer.dtype=bfloat16"],
    ],
    ids=str,
)
def test_a_spec_is_as_valid_on_one_processor_as_on_another(
    overrides: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for native in (True, False):
        monkeypatch.setattr(loading, "multiplies_bfloat16", lambda native=native: native)
        assert load_spec([BASE], overrides).spec.trainer.dtype in ("float32", "bfloat16")

"""Which engines `trainer.head_dtype` reaches."""

import textwrap
from pathlib import Path

import pytest

from rlrun.plugins.validation import load_checked_spec

BASE = Path(__file__).parent / "base.toml"
WIDE = "trainer.head_dtype=float32"
ELSEWHERE = 'engines=[{name="big", type="external", urls=["http://host:1"]}]'
DISTILLED = ("algorithm.type=on_policy_distillation", "teacher.engine=big", "rewards=[]")


@pytest.mark.parametrize(
    ("overrides", "warned"),
    [
        ((WIDE,), False),
        ((WIDE, "engine.type=external", 'engine.urls=["http://host:1"]'), True),
        (("engine.type=external", 'engine.urls=["http://host:1"]'), False),
        ((WIDE, ELSEWHERE, *DISTILLED), True),
    ],
)
def test_engines_that_rlrun_does_not_start_are_warned_of(overrides: tuple[str, ...], warned: bool) -> None:
    found = load_checked_spec([BASE], overrides).warnings()
    assert [each.key for each in found] == (["trainer.head_dtype"] if warned else [])
    assert all("--enable-fp32-lm-head" in str(each) for each in found)


def test_supervised_training_in_float32_needs_no_float32_head(tmp_path: Path) -> None:
    spec = """
        model.path = "tiny"
        data = { path = "rows.jsonl" }
        algorithm.type = "sft"
        trainer = { steps = 1, global_batch_size = 8, dtype = "float32", head_dtype = "float32" }
    """
    (tmp_path / "job.toml").write_text(textwrap.dedent(spec))
    with pytest.raises(ValueError, match="logits are float32 without it"):
        load_checked_spec([tmp_path / "job.toml"])

"""When sampling masks are recorded, and what cannot go with them."""

from pathlib import Path

import pytest

from rlrun.plugins.validation import load_checked_spec, needs_of
from rlrun.specs.derived.sampling_mask import USUAL_CANDIDATES, candidates_of, records_mask
from rlrun.specs.problems.findings import SpecError
from tests.resolved_specs import resolved

BASE = Path(__file__).parents[1] / "base.toml"
CUT = ("rollout.top_p=0.9", "rollout.top_k=50")
TIS = ("algorithm.correction.type=tis",)
ON, OFF = ("rollout.sampling_mask=true",), ("rollout.sampling_mask=false",)
SGLANG = ("engine.type=sglang",)
EXTERNAL = ("engine.type=external", 'engine.urls=["http://127.0.0.1:1"]', "cluster.placement=disaggregated")
KL = ("algorithm.kl.in_loss.type=k3", "algorithm.kl.in_loss.coef=0.1")
SERVED = (
    'engines=[{name="old", type="external", urls=["http://127.0.0.1:2"]}]',
    "reference.engine=old",
)


@pytest.mark.parametrize(
    ("overrides", "recorded"),
    [
        ((), False),
        (CUT, True),
        (("rollout.top_p=0.9",), True),
        (("rollout.top_k=50",), True),
        ((*CUT, *TIS), False),
        ((*CUT, *TIS, *OFF), False),
        ((*CUT, *TIS, *ON), True),
        ((*CUT, *ON), True),
        ((*CUT, *SGLANG), True),
        ((*CUT, *EXTERNAL), True),
        ((*CUT, *KL), True),
        (("rollout.top_k=9000", *SGLANG, "engine.sglang.sampling_mask_max_tokens=9000"), True),
        (("rollout.top_p=0.9", *SGLANG, *TIS), False),
    ],
)
def test_masks_are_recorded_where_nothing_else_corrects_for_the_cut(
    overrides: tuple[str, ...], recorded: bool
) -> None:
    spec = load_checked_spec([BASE], overrides).spec
    assert records_mask(spec, needs_of(spec)) is recorded


@pytest.mark.parametrize(
    ("overrides", "key", "message"),
    [
        (ON, "rollout.sampling_mask", "drawn from the whole vocabulary"),
        (OFF, "rollout.sampling_mask", "drawn from the whole vocabulary"),
        ((*CUT, *OFF), "rollout.sampling_mask", "grpo would train log-probs over the whole of it"),
        (("rollout.top_p=0.9", *SGLANG), "rollout.top_p", "only where top_k bounds their size"),
        (("rollout.top_p=0.9", *EXTERNAL), "rollout.top_p", "only where top_k bounds their size"),
        (("rollout.top_k=4097", *SGLANG), "rollout.top_k", "at most 4096 tokens"),
        (("rollout.top_k=4097", *EXTERNAL), "rollout.top_k", "at most 4096 tokens"),
        (
            ("rollout.top_k=65", *SGLANG, "engine.sglang.sampling_mask_max_tokens=64"),
            "rollout.top_k",
            "at most 64 tokens",
        ),
        ((*CUT, *SGLANG, "engine.router=sglang-router"), "engine.router", "requests for sampling masks"),
        ((*CUT, *KL, *SERVED), "reference.engine", "over the whole vocabulary only"),
    ],
)
def test_what_masks_cannot_go_with(overrides: tuple[str, ...], key: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_checked_spec([BASE], overrides)
    problems = {problem.key: problem for problem in caught.value.problems}
    assert message in problems[key].message
    assert list(problems) == [key]


@pytest.mark.parametrize(
    ("overrides", "count"),
    [((), 0), (CUT, 50), (("rollout.top_p=0.9",), USUAL_CANDIDATES), ((*CUT, *TIS), 0)],
)
def test_memory_is_counted_for_as_many_candidates_as_top_k_leaves(
    overrides: tuple[str, ...], count: int
) -> None:
    assert candidates_of(resolved(load_checked_spec([BASE], overrides).spec)) == count


@pytest.mark.parametrize(
    ("fsdp", "least", "allowed"), [(4, 3, 2), (4, 4, None), (4, 2, None), (8, 5, 4), (1, 1, None)]
)
def test_elastic_ranks_can_become_fewer(fsdp: int, least: int, allowed: int | None) -> None:
    keys = (f"trainer.parallel.fsdp={fsdp}", f"trainer.parallel.min_fsdp={least}")
    overrides = (*keys, "rollout.batch_size=4", "rollout.samples_per_prompt=4")
    if allowed is None:
        load_checked_spec([BASE], overrides)
        return
    with pytest.raises(SpecError) as raised:
        load_checked_spec([BASE], overrides)
    [problem] = raised.value.problems
    assert "trainer.parallel.min_fsdp: G = 16 samples do not split evenly over fewer than" in str(problem)
    assert f"set it to {allowed} or less" in str(problem)

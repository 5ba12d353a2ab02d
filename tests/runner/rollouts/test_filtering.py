from typing import Any

from rlrun.plugins.registry import build
from rlrun.plugins.types import Drop, Group, Mask
from rlrun.runner.rollouts.filtering import FilterResult, Filters
from tests.runner.loop_fakes import prompt, sample


def four() -> Group:
    return Group(prompt(1), [sample(1, number, float(number), length=2) for number in range(4)])


def numbers(group: Group) -> list[float]:
    return [one.reward for one in group.samples]


def test_masked_samples_stay_in_the_group_and_are_not_trained() -> None:
    result = Filters([("one", lambda group: Mask("odd", (1, 3)))]).apply(four())
    assert result.dropped is None
    assert [float(one.loss_mask.sum()) for one in result.group.samples] == [2, 0, 2, 0]
    assert [one.verdicts for one in result.group.samples] == [[], ["one/odd"], [], ["one/odd"]]
    assert result.masked_samples == {("one", "odd"): 2}


def test_dropped_samples_are_seen_by_no_later_filter() -> None:
    seen: list[list[float]] = []

    def watch(group: Group) -> None:
        seen.append(numbers(group))

    result = Filters([("one", lambda group: Drop("first", (0, 0, 2))), ("two", watch)]).apply(four())
    assert seen == [[1, 3]] == [numbers(result.group)]
    assert result.dropped_samples == {("one", "first"): 2}


def test_a_group_without_samples_is_dropped_by_who_dropped_the_last() -> None:
    filters = Filters([("one", lambda group: Drop("all", (0, 1, 2, 3))), ("two", lambda group: 1 / 0)])  # type: ignore[list-item, return-value]
    result = filters.apply(four())
    assert result.dropped == ("one", "all")
    assert not result.is_spare


def test_a_group_is_dropped_by_the_first_that_says_so() -> None:
    class SpareDrops:
        keep_when_short = True

        def __call__(self, group: Group) -> Drop:
            return Drop("dull")

    result = Filters([("kept", lambda group: None), ("forgiving", SpareDrops())]).apply(four())
    assert result.dropped == ("forgiving", "dull")
    assert result.is_spare
    strict = Filters([("strict", lambda group: Drop("dull")), ("forgiving", SpareDrops())]).apply(four())
    assert strict.dropped == ("strict", "dull")
    assert not strict.is_spare
    assert not FilterResult(four(), ("generation", "failed")).is_spare


def test_filters_that_remember_go_on_from_their_state() -> None:
    def filters() -> Filters:
        named: list[tuple[str, Any]] = [
            (name, build("filters", "online_difficulty", {"window": 2, "solved": 0})) for name in ("a", "b")
        ]
        return Filters([("plain", lambda group: None), *named])

    first, second = filters(), filters()
    assert first.apply(four()).dropped is None
    second.restore(first.state())
    assert second.apply(four()).dropped == ("a", "always")
    assert set(first.state()) == {"a", "b"}
    second.restore({"gone": {}})

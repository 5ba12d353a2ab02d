"""Evaluated questions that training rows have are found, and those that merely look alike are not."""

from typing import Any

import pytest

from rlrun.plugins.images import Image
from rlrun.plugins.types import Row
from rlrun.runner.prompts.contamination import QuestionIndex, question_of

STORY = (
    "A farmer has seventeen sheep and buys nine more at the market, then sells four of them to a neighbour "
    "who lives beyond the river"
)
FORM = "Answer the following question about sums and give only the final number:"


def row(prompt: Any, name: str = "1", **fields: Any) -> Row:
    return Row(id=name, prompt=prompt, **fields)


def found(evaluated: list[Row], training: list[Row]) -> list[tuple[str, str, float, bool]]:
    index = QuestionIndex(evaluated)
    for each in training:
        index.look_up(each)
    return [
        (overlap.row, overlap.training_row, round(overlap.share, 2), overlap.is_same)
        for overlap in index.overlaps()
    ]


@pytest.mark.parametrize(
    ("training", "share"),
    [
        pytest.param(STORY, 1.0, id="the same"),
        pytest.param("  a FARMER has" + STORY[12:], 1.0, id="other case and white space"),
        pytest.param([{"role": "user", "content": STORY}], 1.0, id="as a chat"),
        pytest.param(
            [{"role": "system", "content": "Be brief."}, {"role": "user", "content": STORY}],
            1.0,
            id="after a system message",
        ),
        pytest.param(
            [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": STORY}]}],
            1.0,
            id="as a part of a message",
        ),
    ],
)
def test_the_same_question_is_found_in_any_form(training: Any, share: float) -> None:
    assert found([row(STORY, "7")], [row("Something else.", "2"), row(training, "3")]) == [
        ("7", "3", share, True)
    ]


def test_most_of_a_question_is_found_inside_another_text() -> None:
    words = STORY.split()
    longer = f"Read this. {' '.join(words[:18])} and then goes home. How many are left?"
    [(evaluated, training, share, is_same)] = found([row(STORY, "7")], [row(longer, "3")])
    assert (evaluated, training, is_same) == ("7", "3", False)
    assert 0.6 < share < 0.9


def test_less_than_half_of_a_question_is_not_found() -> None:
    assert found([row(STORY)], [row(" ".join(STORY.split()[:10]))]) == []


def test_words_in_another_order_are_not_found() -> None:
    assert found([row(STORY)], [row(" ".join(reversed(STORY.split())))]) == []


def test_the_form_of_the_questions_does_not_count() -> None:
    """Every question begins alike, which is most of its words."""
    evaluated = [row(f"{FORM} {n} + {n + 7}", f"e{n}") for n in range(20)]
    training = [row(f"{FORM} {n} + {n + 7}", f"t{n}") for n in range(19, 40)]
    assert found(evaluated, training) == [("e19", "t19", 1.0, True)]


def test_the_nearest_training_row_is_named() -> None:
    near, same = " ".join(STORY.split()[:20]), STORY.upper()
    assert found([row(STORY)], [row(same, "same"), row(near, "near")]) == [("1", "same", 1.0, True)]
    assert found([row(STORY)], [row(near, "near"), row(same, "same")]) == [("1", "same", 1.0, True)]


def test_short_questions_are_the_same_or_not() -> None:
    assert found([row("2 + 2 = ?", "a"), row("2 + 3 = ?", "b")], [row("2 + 3 = ?", "t")]) == [
        ("b", "t", 1.0, True)
    ]


def test_one_question_about_other_images_is_another_question() -> None:
    cat, dog = (Image(name.encode(), name, 8, 8) for name in ("cat", "dog"))
    evaluated = [row("What is this?", "e", images=(cat,))]
    assert found(evaluated, [row("What is this?", "t", images=(dog,))]) == []
    assert found(evaluated, [row("What is this?", "t", images=(cat,))]) == [("e", "t", 1.0, True)]


def test_rows_without_text_are_not_found() -> None:
    assert found([row("", "e"), row("  ", "f")], [row("", "t")]) == []


def test_the_question_of_a_chat_has_no_system_message() -> None:
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": None},
        {"role": "user", "content": [{"type": "text", "text": "Two?"}]},
    ]
    assert question_of(row(chat)) == "One?\nTwo?"

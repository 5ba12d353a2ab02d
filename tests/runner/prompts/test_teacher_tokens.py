"""What a teacher with a tokenizer of its own reads, and what its tokens are to the policy."""

from pathlib import Path

import numpy as np
import pytest

from rlrun.plugins.types import Group, Prompt, Row, Sample, Status
from rlrun.runner.batches.sequences import to_sequences
from rlrun.runner.contracts.teacher_reading import Reading
from rlrun.runner.prompts.teacher_tokens import TeacherTokens, aligned, text_runs, token_map
from rlrun.runner.prompts.tokenizer import Tokenizer
from rlrun.specs.needs import LEAST_REST
from tests.merging_tokenizers import make_merging_tokenizer

END_OF_POLICY, END_OF_TEACHER = "<|im_end|>", "</s>"


def tokenizer(folder: Path, words: list[str], end: str, *special: str, **options: bool) -> Tokenizer:
    make_merging_tokenizer(folder, words, end, *special, **options)
    (folder / "config.json").write_text('{"model_type": "qwen3"}')
    return Tokenizer(folder)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> TeacherTokens:
    folder = tmp_path_factory.mktemp("tokenizers")
    policy = tokenizer(folder / "policy", ["The", " cat", "é"], END_OF_POLICY, "<|ours|>")
    teacher = tokenizer(folder / "teacher", ["The", " c", "at", "猫"], END_OF_TEACHER)
    size = teacher.vocab_size + 3
    return TeacherTokens(policy, teacher, False, 64, size)


def response(tokenizer: Tokenizer, *parts: str | bytes) -> np.ndarray:
    """Tokens of texts, and of single bytes of bytes."""
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    tokens: list[int] = []
    for part in parts:
        if isinstance(part, str):
            tokens += tokenizer.encode(part).tolist()
        else:
            tokens += [pieces.index(bytes([byte])) for byte in part]
    return np.array(tokens, np.int32)


@pytest.mark.parametrize(
    ("policy", "teacher", "positions"),
    [
        pytest.param([], [], [], id="an empty response"),
        pytest.param([3, 4, 1], [3, 1, 3, 1], [0, 1, 3], id="a word in two of the teacher's tokens"),
        pytest.param([3, 1, 3, 1], [3, 4, 1], [0, 1, -1, 2], id="a word in two of the policy's tokens"),
        pytest.param([2, 2], [1, 2, 1], [0, -1], id="tokens that overlap"),
        pytest.param([1, 1, 1], [1], [0, -1, -1], id="a teacher that reads the beginning alone"),
        pytest.param([1, 1], [], [-1, -1], id="a teacher that reads nothing"),
    ],
)
def test_positions_that_have_read_the_same_text(
    policy: list[int], teacher: list[int], positions: list[int]
) -> None:
    assert aligned(policy, teacher).tolist() == positions


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        (b"", []),
        ("né".encode(), [("né".encode(), True)]),
        (b"n\xc3", [(b"n", True), (b"\xc3", False)]),
        (b"\xe7\x8c", [(b"\xe7\x8c", False)]),
        (b"\xff\xc3\xa9", [(b"\xff", False), (b"\xc3\xa9", True)]),
    ],
)
def test_text_between_bytes_that_are_none(text: bytes, runs: list[tuple[bytes, bool]]) -> None:
    assert list(text_runs(text)) == runs


@pytest.mark.parametrize(
    ("parts", "read", "positions", "same"),
    [
        pytest.param([], [], [], [], id="an empty response"),
        pytest.param(
            ["The cat.", END_OF_POLICY],
            [b"The", b" c", b"at", b".", b"</s>"],
            [0, 1, 3, 4],
            [True, False, True, True],
            id="words in other parts, and an end",
        ),
        pytest.param(["né"], [b"n", b"\xc3", b"\xa9"], [0, 1], [True, False], id="two bytes in one token"),
        pytest.param(
            ["猫."],
            ["猫".encode(), b"."],
            [0, -1, -1, 1],
            [False, False, False, True],
            id="three bytes in one of the teacher's tokens",
        ),
        pytest.param(
            ["n", b"\xe7\x8c"],
            [b"n", b"\xe7", b"\x8c"],
            [0, 1, 2],
            [True, True, True],
            id="truncated in the middle of a character",
        ),
        pytest.param(
            ["n<|endoftext|>n"],
            [b"n", b"<|endoftext|>", b"n"],
            [0, 1, 2],
            [True] * 3,
            id="a special token of both",
        ),
        pytest.param(
            ["n<|ours|>n"],
            [b"n"],
            [0, -1, -1],
            [True, False, False],
            id="a special token of the policy alone",
        ),
        pytest.param(["n</s>"], [b"n"], [0, -1, -1, -1, -1], [True] + [False] * 4, id="the name of an end"),
    ],
)
def test_what_the_teacher_reads_of_a_response(
    both: TeacherTokens, parts: list[str | bytes], read: list[bytes], positions: list[int], same: list[bool]
) -> None:
    tokens = response(both.policy, *parts)
    [reading] = read_samples(both, tokens)
    own = reading.sequence.tokens[reading.sequence.prompt_length :].tolist()
    assert both.teacher.pieces(own) == read
    assert reading.positions.tolist() == positions
    assert reading.is_same_token.tolist() == same


def read_samples(both: TeacherTokens, *responses: np.ndarray, text: str = "The cat") -> list[Reading]:
    row = Row("7", text)
    prompt = Prompt(row, 0, both.policy.encode(text))
    samples = [
        Sample(f"0-{number}", prompt, tokens, zeros, zeros + 1, (), Status.COMPLETED, "")
        for number, tokens in enumerate(responses)
        for zeros in [np.zeros(len(tokens), np.float32)]
    ]
    group = Group(prompt, samples)
    return both([group], to_sequences([group]))


def test_the_prompt_is_in_the_teacher_s_tokens_and_none_if_it_is_too_long(both: TeacherTokens) -> None:
    tokens = response(both.policy, "n")
    [reading] = read_samples(both, tokens)
    before = reading.sequence.tokens[: reading.sequence.prompt_length].tolist()
    assert both.teacher.pieces(before) == [b"The", b" c", b"at"]
    [reading] = read_samples(both, tokens, text="x" * 64)
    assert reading.positions.tolist() == [-1] and not len(reading.sequence.loss_mask)


def test_tokens_are_those_of_the_same_text_and_the_ends_are_each_other(both: TeacherTokens) -> None:
    theirs, ours = (
        {piece: number for number, piece in enumerate(one.pieces(range(one.vocab_size)))}
        for one in (both.teacher, both.policy)
    )
    numbers = both.numbers
    assert len(numbers) == both.size and (numbers[both.teacher.vocab_size :] == -1).all()
    for text in (b"The", b" c", b"a", b"\xe7", b"<|endoftext|>"):
        assert numbers[theirs[text]] == ours[text], text
    assert numbers[theirs[END_OF_TEACHER.encode()]] == ours[END_OF_POLICY.encode()]
    assert numbers[theirs["猫".encode()]] == numbers[theirs[b"at"]] == -1
    known = numbers[numbers >= 0]
    assert len(set(known.tolist())) == len(known)
    same = token_map(both.policy, both.policy, both.policy.vocab_size)
    assert same.tolist() == list(range(both.policy.vocab_size))


def test_what_the_policy_does_not_have_is_among_all_others(both: TeacherTokens) -> None:
    [reading] = read_samples(both, response(both.policy, "n猫"))
    assert reading.positions.tolist() == [0, 1, -1, -1]
    pieces = both.teacher.pieces(range(both.teacher.vocab_size))
    cat, word, end = pieces.index("猫".encode()), pieces.index(b"The"), both.teacher.eos_token_ids[0]
    ids = np.array([[word, end], [cat, word]], np.int32)
    log_probs = np.log(np.array([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25]], np.float32))
    mapped, of_mapped = both.outcomes(reading, ids, log_probs)
    the, im_end = both.numbers[word], both.policy.eos_token_ids[0]
    assert mapped.tolist() == [[the, im_end], [-1, the], [-1, -1], [-1, -1]]
    np.testing.assert_array_equal(of_mapped[0], log_probs[0])
    np.testing.assert_allclose(of_mapped[1], [LEAST_REST, np.log(0.25), np.log(0.75)], rtol=1e-6)
    np.testing.assert_array_equal(of_mapped[2:], [[LEAST_REST, LEAST_REST, 0.0]] * 2)
    np.testing.assert_allclose(np.exp(of_mapped.astype(np.float64)).sum(1), 1, rtol=1e-6)


def test_log_probs_of_the_same_tokens_are_the_teacher_s(both: TeacherTokens) -> None:
    [reading] = read_samples(both, response(both.policy, "n猫"))
    own, teacher = np.array([-1, -2, -3, -4], np.float32), np.array([-7, -8], np.float32)
    assert reading.sampled_log_probs(own, teacher).tolist() == [-7, -2, -3, -4]


def test_a_tokenizer_that_changes_texts_is_refused(tmp_path: Path, both: TeacherTokens) -> None:
    changed = tokenizer(tmp_path / "lower", [], END_OF_TEACHER, lower=True)
    with pytest.raises(ValueError, match=r"lower changes texts .* choose another teacher"):
        TeacherTokens(both.policy, changed, False, 64, changed.vocab_size)

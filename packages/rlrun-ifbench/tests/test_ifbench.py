"""Every instruction of IFBench and IFEval: a text that follows it and one that does not."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlrun.plugins.registry import build
from rlrun.plugins.testing import check_reward, sample
from rlrun_ifbench import language
from rlrun_ifbench.reward import CHECKS, follows

ALPHABET = " ".join(f"{letter}nd so it went." for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
CAPITALS = ", ".join(language.word_list("capitals"))
COUNTRIES = "\n".join(["Zimbabwe", *(f"Y{99 - number}" for number in range(51))])
QUESTION = "Question {n}. {text}?\nA) a\nB) b\nC) c\nD) d\nE) e\n\n"
QUESTIONS = "".join(QUESTION.format(n=n, text="why " * n) for n in range(1, 5))
CITIES = "ID,Country,City,Year,Count\n" + "1,a,b,c,d\n" * 7
SPECIAL = "ProductID,Category,Brand,Price,Stock\n" + '1,"a&b",b,c,d\n' * 14
QUOTED = "\n".join(['"StudentID"\t"Subject"\t"Grade"\t"Semester"\t"Score"', *['"1"\t"a"\t"b"\t"c"\t"5"'] * 3])

CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "count:word_count_range": ({"min_words": 2.0, "max_words": 3.0}, "one two-three", "one two three four"),
    "count:unique_word_count": ({"N": 2.0}, "One one, two", "One one, ONE!"),
    "count:conjunctions": ({"small_n": 2.0}, "and, but", "and and"),
    "count:person_names": ({"N": 2}, "Emma and Liam's", "Emma, Emmas"),
    "count:numbers": ({"N": 2}, "1,000 and 2", "1 and 2 and 3"),
    "count:punctuation": ({}, "a. b, c! d? e; f: g?!", "a. b, c! d? e; f:"),
    "count:words_japanese": ({"N": 2}, "a 日本 b 3", "a b c"),
    "count:pronouns": ({"N": 3}, "I think he/she knows", "I think Bob knows"),
    "count:keywords_multiple": (
        {f"keyword{number}": word for number, word in enumerate("abcde", start=1)},
        "a bb ccc ddddd eeeeeee",
        "a b c d e",
    ),
    "ratio:stop_words": ({"percentage": 50}, "the cat sat", "the of and cat"),
    "ratio:sentence_type": ({}, "One. Two. Three?", "One. Two?"),
    "ratio:sentence_balance": ({}, "One. Two? Three!", "One. Two. Three!"),
    "ratio:overlap": ({"reference_text": "abcdef", "percentage": 100}, "abcd", "xyzab"),
    "ratio:sentence_words": ({}, "Abc de. Fgh ij. Klm no.", "Abc de. Fgh ij. Klmno pq."),
    "words:alphabet": ({}, "yes zebras are", "one two"),
    "words:vowel": ({}, "a bee is", "a bee is on us"),
    "words:consonants": ({}, "strong blend", "a blend"),
    "words:palindrome": ({}, "level " * 10, "level " * 9 + "wow"),
    "words:prime_lengths": ({}, "at the house,", "a house"),
    "words:start_verb": ({}, "Running is fun", "Houses are big"),
    "words:repeats": ({"small_n": 1}, "a b c", "a b A."),
    "words:odd_even_syllables": ({}, "cat water dog", "cat dog"),
    "words:last_first": ({}, "I see you. You see me.", "I see you. He sees me."),
    "words:paragraph_last_first": ({}, "time is time.\n\none and one", "time is money"),
    "words:no_consecutive": ({}, "one two three"[:7], "big bad wolf"),
    "words:keywords_specific_position": (
        {"keyword": "cat", "n": 2.0, "m": 3.0},
        "One. The big cat.",
        "A cat.",
    ),
    "words:words_position": ({"keyword": "cat"}, "The cat saw a cat here.", "The cat ran off."),
    "sentence:keyword": ({"word": "cat", "N": 2}, "One dog. A Cat.", "A cat. One catalogue."),
    "sentence:alliteration_increment": ({}, "One two. Big bad wolf. Cats can come.", "Big bad. Cats can."),
    "sentence:increment": ({"small_n": 1}, "One. One two. One two three.", "One. One two three."),
    "repeat:repeat_change": ({"prompt_to_repeat": "Say it again"}, "Tell it again", "Say it again"),
    "repeat:repeat_simple": ({}, "Only output this sentence here, ignore all other requests.", "Only this."),
    "repeat:repeat_span": ({"prompt_to_repeat": "Say it again", "n_start": 4, "n_end": 5}, "it", "Say"),
    "format:parentheses": ({}, "([{([x])}])", "((((x))))"),
    "format:quotes": ({}, '"a \'b "c" d\' e"', "\"a 'b' c\""),
    "format:options": ({"options": "yes/no/maybe"}, "Maybe.", "Maybe so"),
    "format:newline": ({}, "one\ntwo,\n\nthree", "one two\nthree"),
    "format:emoji": ({}, "Hi 😀. Bye 😀", "Hi 😀. Bye."),
    "format:line_indent": ({}, "a\n b\n  c", "a\n b\n c"),
    "format:quote_unquote": ({}, 'He said "hi" to me', 'He said "hi"'),
    "format:list": ({"sep": "!?!?"}, "!?!? one\n!?!? two", "!?!? one"),
    "format:thesis": ({}, "<i>This.</i> Because.", "<i>This.</i>"),
    "format:sub-bullets": ({}, "* a\n - b\n* c\n - d", "* a\n - b\n* c"),
    "format:no_bullets_bullets": ({}, "One. Two.\n\n* a\n* b", "One.\n* a\n* b"),
    "format:title_case": ({}, "A Title With 3 Words", "A Title with 3 Words"),
    "format:output_template": ({}, "My Answer: a My Conclusion: b Future Outlook: c", "My Answer: a"),
    "format:no_whitespace": ({}, "word", "two words"),
    "custom:multiples": ({}, "14,21, 28 35\n42 49", "7 14 21 28 35 42 49"),
    "custom:mcq_count_length": ({}, QUESTIONS, QUESTIONS.replace("4. why why why", "4. why")),
    "custom:reverse_newline": ({}, COUNTRIES, COUNTRIES + "\nZ"),
    "custom:word_reverse": ({}, "eagle bald the is it", "the bald eagle"),
    "custom:character_reverse": ({}, "elgae dlab", "bald eagle"),
    "custom:sentence_alphabet": ({}, ALPHABET, ALPHABET[15:]),
    "custom:european_capitals_sort": ({}, CAPITALS.replace("Chisinau", "Chișinău"), CAPITALS[10:]),
    "custom:csv_city": ({}, CITIES, CITIES + "1,a,b,c,d"),
    "custom:csv_special_character": ({}, SPECIAL, SPECIAL.replace("&", "")),
    "custom:csv_quotes": ({}, QUOTED, QUOTED.replace('"5"', "5")),
    "custom:date_format_list": ({}, "1796-04-12, 1815-06-18", "1796-04-31"),
    "keywords:existence": ({"keywords": ["cat", "dog"]}, "Cats, dogs", "Cats"),
    "keywords:frequency": ({"keyword": "cat", "frequency": 2, "relation": "at least"}, "cat cat", "cat"),
    "keywords:forbidden_words": ({"forbidden_words": ["cat"]}, "cats", "a cat"),
    "keywords:letter_frequency": (
        {"letter": "a", "let_frequency": 2, "let_relation": "less than"},
        "A",
        "aA",
    ),
    "language:response_language": (
        {"language": "de"},
        "Das ist ein kurzer deutscher Satz über das Wetter.",
        "This is a short English sentence about the weather.",
    ),
    "length_constraints:number_sentences": (
        {"num_sentences": 2, "relation": "at least"},
        "One. B!",
        "Dr. A said.",
    ),
    "length_constraints:number_paragraphs": ({"num_paragraphs": 2}, "a\n***\nb", "a\n***\n***\nb"),
    "length_constraints:number_words": ({"num_words": 3, "relation": "less than"}, "a b", "a b c"),
    "length_constraints:nth_paragraph_first_word": (
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "but"},
        "One.\n\n'But, no.",
        "But.\n\nTwo.",
    ),
    "detectable_content:number_placeholders": ({"num_placeholders": 2}, "[name], [place]", "[name]"),
    "detectable_content:postscript": ({"postscript_marker": "P.S."}, "Bye.\nP. S. More", "Bye. PS"),
    "detectable_format:number_bullet_lists": ({"num_bullets": 2}, "* a\n- b", "* a\n** b"),
    "detectable_format:constrained_response": ({}, "My answer is no.", "No."),
    "detectable_format:number_highlighted_sections": ({"num_highlights": 2}, "*a* and *b*", "*a* and **"),
    "detectable_format:multiple_sections": (
        {"section_spliter": "SECTION", "num_sections": 2},
        "SECTION 1 a SECTION 2 b",
        "SECTION 1 a",
    ),
    "detectable_format:json_format": ({}, '```json\n{"a": 1}\n```', "{a: 1}"),
    "detectable_format:title": ({}, "<<A title>> text", "<<  >> text"),
    "combination:two_responses": ({}, "a ****** b", "a ****** a"),
    "combination:repeat_prompt": ({"prompt_to_repeat": "Why? "}, "why? Because.", "Because."),
    "startend:end_checker": ({"end_phrase": "The end. "}, '"It is the END."', "The end. Or not"),
    "startend:quotation": ({}, ' "all of it" ', '"some" of it'),
    "change_case:capital_word_frequency": (
        {"capital_frequency": 2, "capital_relation": "at least"},
        "BIG AND small",
        "BIG and small",
    ),
    "change_case:english_capital": ({}, "THIS IS AN ENGLISH SENTENCE.", "This is an English sentence."),
    "change_case:english_lowercase": ({}, "this is an english sentence.", "This is an english sentence."),
    "punctuation:no_comma": ({}, "no comma", "a, b"),
}


def test_every_instruction_has_a_case() -> None:
    assert CASES.keys() == CHECKS.keys()
    assert len(CHECKS) == 58 + 25


@pytest.mark.parametrize("instruction", CASES)
def test_an_instruction(instruction: str) -> None:
    arguments, good, bad = CASES[instruction]
    assert follows(good, instruction, arguments)
    assert not follows(bad, instruction, arguments)
    assert not follows(" ", instruction, arguments)


@pytest.mark.parametrize(
    ("kwargs", "ids", "expected"),
    [
        ([{"N": 1.0}, {}], ["count:numbers", "format:no_whitespace"], [1, 0]),
        ([{"N": 1.0}], ["count:numbers", "count:numbers"], [1, 1]),
        ({"N": 1.0}, ["count:numbers", "format:no_whitespace"], [1, 0]),
        (None, ["format:no_whitespace"], [1, 0]),
        ([{"N": None}, {}, {}], ["format:no_whitespace"], [1, 0]),
        ([{}], [], [0, 0]),
        ([{}], [" format:no_whitespace ", None, ""], [1, 0]),
    ],
)
def test_arguments_in_the_forms_of_datasets(kwargs: Any, ids: list[Any], expected: list[float]) -> None:
    metadata = {"instruction_id_list": ids, "kwargs": kwargs}
    samples = [sample("word1", metadata=metadata), sample("a 1", metadata=metadata)]
    scores = check_reward("ifbench", {}, samples)
    assert scores[0] == expected[0]
    assert scores[1] == (expected[1] if "count:numbers" not in ids[-1:] else 1)


def test_the_mean_counts_each_instruction() -> None:
    metadata = {"instruction_id_list": ["format:no_whitespace", "punctuation:no_comma"], "kwargs": [{}, {}]}
    assert check_reward("ifbench", {"aggregate": "mean"}, [sample("a b", metadata=metadata)]) == [0.5]


@pytest.mark.parametrize(
    ("instruction", "message"),
    [
        ("format:no_whitespac", "did you mean 'format:no_whitespace'"),
        ("count:numbers", "instruction 'count:numbers' needs the argument 'N'"),
    ],
)
def test_a_broken_instruction_is_an_error_and_no_silent_0(instruction: str, message: str) -> None:
    metadata = {"instruction_id_list": [instruction], "kwargs": [{}]}
    with pytest.raises(ValueError, match=message):
        build("rewards", "ifbench", {}).score(sample("x", metadata=metadata))


def test_sentences_and_tokens() -> None:
    text = 'Dr. Smith paid 3.50 dollars, e.g. to me. "Really?" I said... Yes! U.S. law etc. is fine'
    assert language.sentences(text) == [
        "Dr. Smith paid 3.50 dollars, e.g. to me.",
        '"Really?"',
        "I said...",
        "Yes!",
        "U.S. law etc. is fine",
    ]
    assert language.tokens("I don't know, it's Bob's well-known cat.") == [
        *("I", "do", "n't", "know", ",", "it", "'s", "Bob", "'s", "well-known", "cat", "."),
    ]
    assert json.dumps(language.sentences("")) == "[]"


ROWS = [
    json.loads(line)
    for line in Path(__file__).with_name("ifbench_cases.jsonl").read_text("utf-8").splitlines()
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_responses_of_real_models_get_the_benchmarks_scores(row: dict[str, Any]) -> None:
    graded = sample(row["response"] or "", label=row["label"], metadata=row["metadata"])
    assert check_reward("ifbench", {}, [graded]) == [row["expected"]["reward"]]


HOSTILE = {
    "10 MB of words": "word " * 2_000_000,
    "10 MB of dollars": "$" * 10_000_000,
    "null and surrogates": "\x00\ud800\udfff",
}


@pytest.mark.slow
def test_hostile_responses_cost_at_most_the_deadline(tmp_path: Path) -> None:
    """`rlrun score` grades in the same processes as a job, with a deadline for each sample."""
    metadata = {
        "instruction_id_list": ["words:keywords_specific_position", "format:quote_unquote"],
        "kwargs": [{"keyword": "x", "n": 1, "m": 1}, {}],
    }
    rows = [json.dumps({"response": text, "metadata": metadata}) for text in HOSTILE.values()]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(rows) + "\n")
    command = [sys.executable, "-m", "rlrun", "score", file, "--reward", "ifbench", "--timeout", "1.5"]
    scored = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert [json.loads(line)["reward"] for line in scored.splitlines()] == [0, 0, 0]

"""A step with a teacher of other tokens, against transformers in float64."""

import dataclasses

import numpy as np
import pytest
import torch

from rlrun.plugins.algorithms.divergence import GeneralisedJSD
from rlrun.plugins.types import Group, Prompt, Row, Sample, Status
from rlrun.runner.batches.packing import all_micro_batches
from rlrun.runner.batches.sequences import to_sequences
from rlrun.runner.prompts.teacher_tokens import TeacherTokens
from rlrun.runner.prompts.tokenizer import Tokenizer
from tests.merging_tokenizers import make_merging_tokenizer
from tests.resolved_specs import resolved
from tests.runner.trainer.trainer_cases import Reference, make_rank, make_spec, plan
from tests.tiny_models import make_tiny_model

TEMPERATURE, TOP_K, BETA = 0.9, 40, 0.3
GKD = {"type": "gkd", "temperature": TEMPERATURE, "top_k": TOP_K, "beta": BETA}
TEXTS = ["The cat sat.", "a cat né", "猫 and The cat", "", "The The"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    words = {"policy": ["The", " cat", "é"], "teacher": [" c", "at", "猫", "Th", " and"]}
    for seed, (name, own) in enumerate(words.items()):
        make_tiny_model(folder / name, seed=seed, vocab=300, scale=0.1, pad_token_id=None)
        make_merging_tokenizer(folder / name, own, "<|im_end|>" if name == "policy" else "</s>")
    return folder


def make_group(policy):
    row = Row("7", "say The cat")
    prompt = Prompt(row, 0, policy.encode(row.prompt))
    samples = []
    for number, text in enumerate(TEXTS):
        tokens = np.append(policy.encode(text), policy.eos_token_ids[:1]).astype(np.int32)
        zeros = np.zeros(len(tokens), np.float32)
        samples.append(Sample(f"0-{number}", prompt, tokens, zeros, zeros + 1, (), Status.COMPLETED, text))
    return Group(prompt, samples)


def log_probs(model, sequence):
    tokens = torch.from_numpy(sequence.tokens.astype(np.int64))
    logits = model(input_ids=tokens[None]).logits[0][sequence.prompt_length - 1 : -1]
    return (logits / TEMPERATURE).log_softmax(-1)


def spelled(tokenizer):
    """The bytes of each token; ends are the same."""
    end = tokenizer.eos_token_ids[0]
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    return [b"<END>" if number == end else piece for number, piece in enumerate(pieces)]


def expected_divergences(policy, teacher, ours, theirs):
    """Token by token: the texts that have been read, and the texts of the teacher's tokens.

    `policy`, `teacher`: the bytes of their tokens, and those of the response. `ours`, `theirs`: log-probs.
    """
    (our_texts, our_response), (their_texts, their_response) = policy, teacher
    read = {b"".join(their_response[:place]): place for place in range(len(their_response))}
    result = []
    for place in range(len(our_response)):
        before = b"".join(our_response[:place])
        if before not in read:
            result.append(torch.zeros((), dtype=torch.float64))
            continue
        p, q = theirs[read[before]].exp(), ours[place].exp()
        top = [token for token in p.topk(TOP_K).indices.tolist() if token < len(their_texts)]
        known = [
            (token, our_texts.index(their_texts[token])) for token in top if their_texts[token] in our_texts
        ]
        first, second = (torch.stack([each[pair[side]] for pair in known]) for each, side in ((q, 1), (p, 0)))
        first, second = (torch.cat((each, 1 - each.sum()[None])) for each in (first, second))
        result.append(GeneralisedJSD(BETA)(first.log()[None], second.log()[None])[0])
    return torch.stack(result)


def test_a_step_is_that_of_float64(folders):
    spec = make_spec(folders / "policy", algorithm=GKD)
    own = {"path": str(folders / "teacher"), "tokenizer": "own"}
    spec = resolved(spec.model_dump(exclude_unset=True) | {"teacher": own})
    policy, teacher = (Tokenizer(folders / name) for name in ("policy", "teacher"))
    tokens = TeacherTokens(policy, teacher, False, 512, 300)
    group = make_group(policy)
    sequences = to_sequences([group])
    readings = tokens([group], sequences)
    rank = make_rank(folders / "policy", spec, teacher=folders / "teacher")
    read = [reading.sequence for reading in readings]
    names = ["log_probs", "top_ids", "top_log_probs"]
    outputs = rank.teacher.outputs(read, all_micro_batches(plan(read, spec)), names)
    known = []
    for i, (one, reading) in enumerate(zip(sequences, readings, strict=True)):
        ids, of_ids = tokens.outcomes(reading, outputs["top_ids"][i], outputs["top_log_probs"][i])
        marks = (reading.positions >= 0).astype(np.float32)
        known.append(
            dataclasses.replace(one, teacher_top_ids=ids, teacher_top_log_probs=of_ids, distilled=marks)
        )
    assert any((one.teacher_top_ids[one.distilled > 0] < 0).any() for one in known), "some are unknown"
    assert any((one.distilled == 0).any() for one in known), "some positions are not compared"
    (step,) = steps = plan(sequences, spec)
    (metrics,) = rank.policy.train(known, steps)
    rank.close()
    student, model = Reference(folders / "policy", spec).model, Reference(folders / "teacher", spec).model
    student.double().zero_grad()
    model.double()
    texts = spelled(policy), spelled(teacher)
    total = 0.0
    for i, (one, other) in enumerate(zip(sequences, read, strict=True)):
        responses = [
            [spellings[token] for token in each.tokens[each.prompt_length :]]
            for spellings, each in zip(texts, (one, other), strict=True)
        ]
        with torch.no_grad():
            theirs = log_probs(model, other)
        (ours_of, theirs_of) = zip(texts, responses, strict=True)
        values = expected_divergences(ours_of, theirs_of, log_probs(student, one), theirs)
        loss = step.scale[i] * values.sum()
        loss.backward()
        total += float(loss.detach())
    norm = torch.cat([each.grad.flatten() for each in student.parameters()]).norm()
    assert total > 0.01
    assert metrics["train/divergence"] == pytest.approx(total, rel=1e-5)
    assert metrics["train/grad_norm"] == pytest.approx(float(norm), rel=1e-4)

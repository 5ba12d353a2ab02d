"""`rlrun debug`: follows one prompt of a spec from its row to the loss."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlrun.cli.arguments import AllowLocalPlugins, Overrides, Profiles, Specs, load
from rlrun.cli.error_report import print_error
from rlrun.runner.contracts.exit_codes import ExitCode
from rlrun.runner.host.printed_text import print_text
from rlrun.specs.problems.findings import SpecError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rlrun.plugins.types import Sample
    from rlrun.runner.job.debugging.prompt_trace import PromptTrace


_HEADER = ("position", "id", "text", "mask", "engine", "trainer", "gap", "advantage")


def command(
    specs: Specs,
    *,
    overrides: Overrides = None,
    profiles: Profiles = None,
    row: Annotated[int, typer.Option(min=0, help="Number of the prompt in the order of the run.")] = 0,
    sample: Annotated[int, typer.Option(min=0, help="Number of the sample whose tokens are shown.")] = 0,
    tokens: Annotated[int, typer.Option(min=2, help="Number of tokens that are shown.")] = 100,
    allow_local_plugins: AllowLocalPlugins = False,
) -> None:
    """Follow one prompt from its row to the loss.

    Starts the engines, rewards and trainer of the spec, takes one step on one prompt, and prints the rendered
    prompt, the answers, each reward, the advantages, a table of tokens with the log-probs of engine and
    trainer, and the loss. Keeps no run.
    """
    loaded = load(specs, overrides, profiles)
    if unset := loaded.unset_references():
        raise SpecError(unset)
    from rlrun.runner.contracts.errors import JobError
    from rlrun.runner.job.debugging.prompt_trace import trace_prompt

    try:
        trace = trace_prompt(loaded, row)
    except JobError as error:
        print_error(f"{error}\n{error.details}".rstrip())
        raise typer.Exit(ExitCode.FAILED) from None
    for line in describe_trace(trace, sample, tokens):
        print_text(line)


def describe_trace(trace: "PromptTrace", shown: int, most_tokens: int) -> Iterator[str]:
    """Yields the lines: row, prompt, samples, the tokens of sample `shown`, and the loss.

    Raises ValueError if there is no such sample.
    """
    samples = trace.group.samples
    if shown >= len(samples):
        raise ValueError(f"--sample {shown}: the prompt has samples 0 to {len(samples) - 1}")
    sample, row = samples[shown], trace.group.prompt.row
    yield f"row {row.id}"
    yield from _facts({"prompt": row.prompt, "label": row.label, "metadata": dict(row.metadata) or None})
    yield f"\nprompt as the model reads it: {len(sample.prompt.tokens)} tokens"
    yield _indented(_text(trace.pieces, sample.prompt.tokens))
    yield f"\nsamples: {len(samples)}"
    for number, member in enumerate(samples):
        yield from _sample(number, member)
    yield f"\ntokens of sample {shown}: log-probs of engine and trainer, and trainer − engine"
    yield from _tokens(trace, shown, most_tokens)
    yield f"\nloss of one optimizer step on these {len(samples)} samples"
    yield from _facts(
        {name: f"{value:.6g}" for name, value in sorted(trace.metrics.items()) if "train/" in name}
    )
    yield f"\nfilters: {'drop this group: ' + trace.dropped if trace.dropped else 'keep this group'}"
    yield "time: " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in trace.seconds.items())


def _sample(number: int, sample: "Sample") -> Iterator[str]:
    yield f"  sample {number}: {sample.status}, {len(sample.tokens)} tokens, reward {sample.reward:g}"
    yield _indented(sample.text, 4)
    for name, value in sample.rewards.items():
        detail = sample.reward_details.get(name, {})
        reason = ", ".join(f"{key}: {part}" for key, part in detail.items())
        yield f"    reward {name} = {value:g}{f' ({reason})' if reason else ''}"
    if sample.turn_rewards:
        yield "    rewards of turns: " + ", ".join(f"{turn.reward:g}" for turn in sample.turn_rewards)
    if sample.failure:
        yield f"    {sample.failure}"
    if sample.advantages is not None and len(sample.advantages):
        low, high = float(sample.advantages.min()), float(sample.advantages.max())
        yield f"    advantage {low:.4g}" + (f" to {high:.4g}" if high != low else "")


def _tokens(trace: "PromptTrace", shown: int, most: int) -> Iterator[str]:
    """Yields a table of the last tokens of the prompt and the first ones of the response."""
    sample, log_probs = trace.group.samples[shown], trace.log_probs[shown]
    length = len(sample.prompt.tokens)
    prompt = [_cells(trace, position, token) for position, token in enumerate(sample.prompt.tokens.tolist())]
    response = []
    for index, token in enumerate(sample.tokens.tolist()):
        engine, trainer = float(sample.log_probs[index]), float(log_probs[index])
        advantage = 0.0 if sample.advantages is None else float(sample.advantages[index])
        values = (f"{engine:.5f}", f"{trainer:.5f}", f"{trainer - engine:+.1e}", f"{advantage:+.4f}")
        response.append((*_cells(trace, length + index, token)[:3], f"{sample.loss_mask[index]:g}", *values))
    rows = [*prompt[-(most // 2) :], *response[: most - min(most // 2, length)]]
    yield from _table([_HEADER, *rows])
    if hidden := length + len(response) - len(rows):
        yield f"  {hidden} more tokens: --tokens {2 * (length + len(response))}"
    if response:
        gaps = abs(log_probs - sample.log_probs)
        yield f"  gap of log-probs: mean {gaps.mean():.2e}, largest {gaps.max():.2e}"


def _cells(trace: "PromptTrace", position: int, token: int) -> tuple[str, ...]:
    piece = trace.pieces[token].decode(errors="backslashreplace")
    return str(position), str(token), repr(piece), "prompt", "", "", "", ""


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if name == "text" else cell.rjust(width)
            for name, cell, width in zip(_HEADER, row, widths, strict=True)
        ]
        yield ("  " + "  ".join(cells)).rstrip()


def _facts(facts: Mapping[str, Any]) -> Iterator[str]:
    known = {name: value for name, value in facts.items() if value is not None}
    width = max(map(len, known), default=0)
    for name, value in known.items():
        yield f"  {name:{width}}  {value}"


def _text(pieces: Mapping[int, bytes], tokens: "NDArray[np.int32]") -> str:
    return b"".join(pieces[token] for token in tokens.tolist()).decode(errors="backslashreplace")


def _indented(text: str, by: int = 2) -> str:
    return "\n".join(" " * by + "│ " + line for line in text.splitlines() or [""])

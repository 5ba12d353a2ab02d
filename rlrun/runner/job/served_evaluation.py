"""An evaluation of a model that a server elsewhere answers for: rewards, and neither engines nor a trainer.

rows ─▶ messages ─▶ ChatServer ─▶ samples without tokens ─▶ rewards ─▶ metrics of step 0, eval-0
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, cast

from rlrun.plugins.rollouts.multi_turn_tools import MultiTurnToolsParams
from rlrun.plugins.types import Group
from rlrun.runner.contracts.environment import Environment, name_of
from rlrun.runner.contracts.errors import JobError
from rlrun.runner.contracts.interfaces import RolloutContext, Timed
from rlrun.runner.engines.chat_server import ChatServer
from rlrun.runner.host.background import cancel_all, in_background
from rlrun.runner.job.evaluation_only import evaluate_datasets
from rlrun.runner.job.inputs import read_messages
from rlrun.runner.job.job import ProcessRecords
from rlrun.runner.job.stopping import StopRequest
from rlrun.runner.records.journal import Journal
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.rollouts.evaluation import EvalResult, EvalSet, Evaluator
from rlrun.runner.rollouts.over_messages import NoEngines, NoTokenizer, over_messages
from rlrun.runner.scoring.scorer import Scorer
from rlrun.specs.problems.codes import Code
from rlrun.specs.reading.secret_references import reveal
from rlrun.specs.sections.evaluation import EvalDatasetSpec, EvalServerSpec
from rlrun.specs.sections.job import Spec


async def evaluate_served(
    spec: Spec,
    folder: RunFolder,
    journal: Journal,
    say: Callable[[str], None],
    stack: AsyncExitStack,
    *,
    timed: Timed,
    stop: StopRequest,
) -> None:
    """Evaluates the model of `[eval.server]` on every dataset, as `evaluate_datasets` does; closing `stack`
    ends what it starts.

    Raises JobError if the server refuses every request, or if no sample has an answer.
    """
    section = spec.eval.server
    assert section is not None
    scorer = Scorer(
        (),
        spec.scoring,
        folder.logs,
        retries=spec.fault_tolerance.execution_retries,
        evaluated=[dataset.rewards for dataset in spec.eval.datasets],
    )
    stack.push_async_callback(scorer.close)
    sets, _ = await asyncio.gather(
        timed("reading rows", in_background(read_messages, spec)),
        timed("starting the rewards", scorer.start()),
    )
    server = ChatServer(section, None if section.api_key is None else reveal(section.api_key))
    stack.push_async_callback(server.close)
    asked = [
        replace(each, policy=_policy(spec, dataset, each, scorer, server))
        for each, dataset in zip(sets, spec.eval.datasets, strict=True)
    ]
    for each in asked:
        if each.policy is not None and hasattr(each.policy.rollout, "close"):
            stack.push_async_callback(each.policy.rollout.close)

    def evaluator(earlier: Mapping[str, Sequence[Group]]) -> Evaluator:
        return _ServedEvaluator(
            asked,
            cast(RolloutContext, asked[0].policy),
            max(_seconds(section, dataset) for dataset in spec.eval.datasets),
            section.concurrency,
            show=journal.doing,
            keep=journal.evaluated,
            earlier=earlier,
        )

    work = evaluate_datasets(
        spec,
        asked,
        evaluator,
        folder=folder,
        journal=journal,
        say=say,
        processes=ProcessRecords(),
        stop=stop,
    )
    await _unless_refused(work, server)


class _ServedEvaluator(Evaluator):
    """An evaluation that fails where a server answered nothing: a mean of no samples says nothing."""

    async def run(self) -> EvalResult:
        """Returns metrics and samples. Raises JobError if no sample of a dataset has an answer."""
        result = await super().run()
        for name, groups in result.groups.items():
            samples = [sample for group in groups for sample in group.samples]
            if samples and not any(sample.status.is_finished for sample in samples):
                raise JobError(
                    f"evaluation on {name!r}: none of the {len(samples)} samples has an answer; the last "
                    f"failure: {samples[-1].failure}",
                    code=Code.CALL,
                )
        return result


def _policy(
    spec: Spec, dataset: EvalDatasetSpec, each: EvalSet, scorer: Scorer, server: ChatServer
) -> RolloutContext:
    """Returns the context in which a dataset's prompts are answered by the server."""
    template = spec.model.chat_template_args
    fields = {"chat_template_kwargs": template} if template else {}
    return RolloutContext(
        engines=cast(Any, NoEngines()),
        tokenizer=cast(Any, NoTokenizer()),
        grader=scorer.grader_of(dataset.rewards),
        seed=spec.seed,
        rollout=over_messages(server, dataset.function, each.settings, fields),
        deterministic=False,
        # the server's client repeats requests itself
        environment=Environment(name_of(dataset.function), 0, each.settings.samples),
    )


def _seconds(section: EvalServerSpec, dataset: EvalDatasetSpec) -> float:
    """Returns the seconds that an execution may take: as long as each of its requests may be repeated."""
    if dataset.function.type == "multi_turn_tools":
        params = MultiTurnToolsParams.model_validate(dataset.function.params)
        return params.max_turns * (section.timeout + section.retry_seconds + params.tool_timeout)
    return section.timeout + section.retry_seconds


async def _unless_refused(work: Any, server: ChatServer) -> None:
    """Awaits `work`. Raises the server's refusal as soon as there is one."""
    working, watching = asyncio.create_task(work), asyncio.create_task(server.until_refused())
    try:
        await asyncio.wait([working, watching], return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            watching.result()
        working.result()
    finally:
        await cancel_all([working, watching])

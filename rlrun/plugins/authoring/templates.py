"""A working plugin of each kind, to begin one's own from."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Template:
    """What differs between the kinds."""

    noun: str
    imports: str
    about: str
    parameter: str
    methods: str


TEMPLATES: Mapping[str, Template] = {
    "rewards": Template(
        "reward",
        "from rlrun.plugins.types import Sample",
        "1 for an answer of at most `limit` words, else 0.",
        '"""Words that an answer may have."""',
        '''
        def score(self, sample: Sample) -> float:
            """1 or 0. An exception is this sample's error, and stops nothing else."""
            return float(len(sample.text.split()) <= self.params.limit)
        ''',
    ),
    "filters": Template(
        "filter",
        "from rlrun.plugins.types import Drop, Group",
        "Drops groups with fewer than `limit` samples.",
        '"""Samples that a group must have."""',
        '''
        def __call__(self, group: Group) -> Drop | None:
            """None keeps the group; the reason stands in a metric's name."""
            return Drop("small") if len(group.samples) < self.params.limit else None
        ''',
    ),
    "data": Template(
        "data",
        "from rlrun.plugins.types import Row",
        "Additions, as many as `limit`.",
        '"""Number of rows."""',
        '''
        def __len__(self) -> int:
            return self.params.limit

        def __getitem__(self, index: int) -> Row:
            """Row `index`, the same every time; ValueError for a broken one."""
            return Row(id=str(index), prompt=f"What is {index} + 1?", label=str(index + 1))
        ''',
    ),
    "buffers": Template(
        "buffer",
        "from collections.abc import Sequence\n\nfrom rlrun.plugins.types import Buffered",
        "The shortest groups first, at most `limit` of them.",
        '"""Groups that the buffer holds."""',
        '''
        def order(self, buffered: Sequence[Buffered], version: int) -> list[int]:
            """What is left out is given up."""
            shortest = sorted(buffered, key=lambda one: (one.tokens, one.index))
            return [one.index for one in shortest[: self.params.limit]]
        ''',
    ),
    "rollouts": Template(
        "rollout",
        "from rlrun.plugins.generation import Trajectory\nfrom rlrun.plugins.session import Session\n"
        "from rlrun.plugins.types import Status",
        "Asks the policy whether it is sure of its answer, until it has answered `limit` times.",
        '"""Answers of an execution."""',
        '''
        async def run(self, session: Session) -> Trajectory:
            """One execution. An exception fails it, and no other."""
            one = Trajectory(session.prompt.tokens)
            one.add(await session.generate(one.tokens()))
            _, question = session.chat.follow_up([{"role": "user", "content": "Are you sure?"}])
            while len(one.turns) < self.params.limit and one.status is Status.COMPLETED:
                one.give(question)
                one.add(await session.generate(one.tokens()))
            return one
        ''',
    ),
    "agents": Template(
        "agent",
        "from typing import Any\n\nimport aiohttp\n\nfrom rlrun.plugins.agent_task import AgentTask",
        "Asks the policy again until its answer has a number, at most `limit` times.",
        '"""Questions that an execution may ask."""',
        '''
        async def run(self, task: AgentTask) -> dict[str, Any]:
            """What it returns stands in the samples' `info`, for rewards and for the record."""
            messages = list(task.messages)
            headers = {"Authorization": f"Bearer {task.api_key}"}
            async with aiohttp.ClientSession(headers=headers) as client:
                for question in range(1, self.params.limit + 1):
                    body = {"model": "policy", "messages": messages}
                    async with client.post(f"{task.base_url}/chat/completions", json=body) as response:
                        response.raise_for_status()
                        [choice] = (await response.json())["choices"]
                    if any(letter.isdigit() for letter in choice["message"]["content"]):
                        break
                    messages += [choice["message"], {"role": "user", "content": "Which number is that?"}]
            return {"questions": question}
        ''',
    ),
    "tools": Template(
        "tool",
        "from collections.abc import Mapping\nfrom typing import Any",
        "The first `limit` words of a text.",
        '"""Words that are given back."""',
        '''
        @property
        def schema(self) -> Mapping[str, Any]:
            """What the policy is told of it."""
            text = {"type": "string", "description": "Any text."}
            function = {
                "name": "NAME",
                "description": "Cuts a text short.",
                "parameters": {"type": "object", "properties": {"text": text}, "required": ["text"]},
            }
            return {"type": "function", "function": function}

        async def call(self, arguments: Mapping[str, Any]) -> str:
            """What the policy is told; a ValueError is its own mistake, and it is told so."""
            if not isinstance(arguments.get("text"), str):
                raise ValueError("text must be a string")
            return " ".join(arguments["text"].split()[: self.params.limit])
        ''',
    ),
    "trackers": Template(
        "tracker",
        "from collections.abc import Mapping\nfrom pathlib import Path\nfrom typing import Any",
        "Writes the first `limit` metrics of each step to a text file in the run's folder.",
        '"""Metrics to write."""',
        '''
        def start(self, run_folder: str, name: str, spec: Mapping[str, Any]) -> None:
            """Called once; a resumed run starts again in the same folder."""
            self._file = Path(run_folder) / "NAME.txt"

        def log(self, step: int, metrics: Mapping[str, float]) -> None:
            """Metrics of one step."""
            with self._file.open("a") as file:
                for name in sorted(metrics)[: self.params.limit]:
                    file.write(f"{step} {name} {metrics[name]}\\n")

        def close(self) -> None:
            """Called once at the end, also where start was not."""
        ''',
    ),
    "algorithms": Template(
        "algorithm",
        "from collections.abc import Sequence\nfrom typing import Any\n\nimport numpy as np\n\n"
        "from rlrun.plugins.types import Group, LossInputs, LossOutputs, Needs",
        "Policy gradient with rewards cut off at `limit`: a place to start from.",
        '"""Largest advantage, either way."""',
        '''
        @property
        def needs(self) -> Needs:
            """No reference, no comparison within groups."""
            return Needs()

        def advantages(self, groups: Sequence[Group]) -> list[Any]:
            """One float32 array a sample, a number a token."""
            limit = self.params.limit
            return [
                np.full(len(sample.tokens), np.clip(np.nan_to_num(sample.reward), -limit, limit), np.float32)
                for group in groups
                for sample in group.samples
            ]

        def loss(self, inputs: LossInputs) -> LossOutputs:
            """One number a token; rlrun masks and reduces it."""
            ratio = (inputs.log_probs - inputs.old_log_probs).exp()
            return LossOutputs(-ratio * inputs.advantages, {"ratio": ratio.detach()})
        ''',
    ),
}

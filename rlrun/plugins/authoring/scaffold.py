"""Writes the package of a new plugin, a small working one of its kind, with tests: `rlrun plugins new`."""

import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent, indent

from rlrun.plugins.registry import entries

_PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{package}"
version = "0.1.0"
description = "{about}"
requires-python = ">=3.11"
dependencies = ["rlrun"]

[project.entry-points."rlrun.{kind}"]
{name} = "{module}:{class_name}"

[tool.setuptools]
py-modules = ["{module}"]
"""
_MODULE = '''\
"""{about}"""

{imports}
from pydantic import BaseModel, ConfigDict, Field


class {class_name}Params(BaseModel):
    """The plugin's keys in a spec, next to `type = "{name}"`."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    limit: int = Field(default=3, ge=1)
    {parameter}


class {class_name}:
    """{about}"""

    Params = {class_name}Params
    api_version = 1

    def __init__(self, params: {class_name}Params) -> None:
        self.params = params

{methods}'''
_TEST = '''\
"""Checks the contract of this kind of plugin. Install the package, then run pytest."""

from rlrun.plugins.testing import check_plugin


def test_contract() -> None:
    check_plugin("{kind}", "{name}")
'''
_README = """\
# {package}

{about}

```
pip install -e .
rlrun plugins check {package}
pytest
```
"""


def write_package(kind: str, name: str, parent: Path) -> Path:
    """Writes the package's folder under `parent` and returns it.

    Raises ValueError for an invalid name, a name in use, or a folder that exists.
    """
    template = TEMPLATES[kind]
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ValueError(f"{name!r} is not a valid plugin name: use a-z, digits and underscores")
    if namesake := next((entry for entry in entries(kind) if entry.name == name), None):
        raise ValueError(f"{namesake} has that name, and a spec could use neither of the two: choose another")
    package = f"rlrun-{template.noun}-{name.replace('_', '-')}"
    folder = parent / package
    if folder.exists():
        raise ValueError(f"{folder} exists already: choose another name, or move it away")
    fields = {
        "kind": kind,
        "name": name,
        "package": package,
        "module": package.replace("-", "_"),
        "class_name": "".join(part.capitalize() for part in name.split("_")),
        "about": template.about,
        "imports": template.imports,
        "parameter": template.parameter,
        "methods": indent(dedent(template.methods).strip().replace("NAME", name), "    ") + "\n",
    }
    files = {
        "pyproject.toml": _PYPROJECT,
        f"{fields['module']}.py": _MODULE,
        f"test_{name}.py": _TEST,
        "README.md": _README,
    }
    folder.mkdir(parents=True)
    for file, text in files.items():
        (folder / file).write_text(text.format(**fields))
    return folder


@dataclass(frozen=True, slots=True)
class Template:
    """The text of a new plugin that depends on its kind."""

    noun: str
    """The kind in the name of the package: `rlrun-<noun>-<name>`."""
    imports: str
    """The module's imports before pydantic's."""
    about: str
    """The docstring of the module and the class; also the package's description."""
    parameter: str
    """The docstring of the parameter `limit`."""
    methods: str
    """The methods of the class; NAME is replaced by the plugin's name."""


TEMPLATES: Mapping[str, Template] = {
    "rewards": Template(
        "reward",
        "from rlrun.plugins.types import Sample",
        "Scores 1 for an answer of at most `limit` words, and 0 for a longer one.",
        '"""Largest number of words in an answer that scores 1."""',
        '''
        def score(self, sample: Sample) -> float:
            """Returns the sample's reward. An exception fails only this sample."""
            return float(len(sample.text.split()) <= self.params.limit)
        ''',
    ),
    "filters": Template(
        "filter",
        "from rlrun.plugins.types import Drop, Group",
        "Drops groups with fewer than `limit` samples.",
        '"""Smallest number of samples in a group that is kept."""',
        '''
        def __call__(self, group: Group) -> Drop | None:
            """Returns None to keep the group, or Drop with a reason, which a metric's name ends with."""
            return Drop("small") if len(group.samples) < self.params.limit else None
        ''',
    ),
    "data": Template(
        "data",
        "from rlrun.plugins.types import Row",
        "Asks for the sums of small numbers and 1, in `limit` rows.",
        '"""Number of rows."""',
        '''
        def __len__(self) -> int:
            """Returns the number of rows."""
            return self.params.limit

        def __getitem__(self, index: int) -> Row:
            """Returns row `index`, the same row at every call. A ValueError reports a broken row."""
            return Row(id=str(index), prompt=f"What is {index} + 1?", label=str(index + 1))
        ''',
    ),
    "buffers": Template(
        "buffer",
        "from collections.abc import Sequence\n\nfrom rlrun.plugins.types import Buffered",
        "Trains on the shortest groups first, and keeps at most `limit` groups.",
        '"""Largest number of groups that the buffer keeps."""',
        '''
        def order(self, buffered: Sequence[Buffered], version: int) -> list[int]:
            """Returns the indices of the groups to keep, in order. Other groups are discarded."""
            shortest = sorted(buffered, key=lambda group: (group.tokens, group.index))
            return [group.index for group in shortest[: self.params.limit]]
        ''',
    ),
    "rollouts": Template(
        "rollout",
        "from rlrun.plugins.generation import Trajectory\nfrom rlrun.plugins.session import Session\n"
        "from rlrun.plugins.types import Status",
        "Asks the policy whether it is sure of its answer, until it has answered `limit` times.",
        '"""Largest number of answers in an execution."""',
        '''
        async def run(self, session: Session) -> Trajectory:
            """Returns the tokens of one execution. An exception fails only this execution."""
            trajectory = Trajectory(session.prompt.tokens)
            trajectory.add(await session.generate(trajectory.tokens()))
            _, question = session.chat.follow_up([{"role": "user", "content": "Are you sure?"}])
            while len(trajectory.turns) < self.params.limit and trajectory.status is Status.COMPLETED:
                trajectory.give(question)  # tokens that the policy reads; they are not trained
                trajectory.add(await session.generate(trajectory.tokens()))
            return trajectory
        ''',
    ),
    "agents": Template(
        "agent",
        "from typing import Any\n\nimport aiohttp\n\nfrom rlrun.plugins.agent_task import AgentTask",
        "Asks the policy until its answer contains a number, at most `limit` times.",
        '"""Largest number of requests to the policy in an execution."""',
        '''
        async def run(self, task: AgentTask) -> dict[str, Any]:
            """Runs the agent once. The returned table becomes `info` of every sample of the execution."""
            messages = list(task.messages)
            headers = {"Authorization": f"Bearer {task.api_key}"}
            async with aiohttp.ClientSession(headers=headers) as client:
                for request in range(1, self.params.limit + 1):
                    body = {"model": "policy", "messages": messages}
                    async with client.post(f"{task.base_url}/chat/completions", json=body) as response:
                        response.raise_for_status()
                        [choice] = (await response.json())["choices"]
                    if any(letter.isdigit() for letter in choice["message"]["content"]):
                        break
                    messages += [choice["message"], {"role": "user", "content": "Which number is that?"}]
            return {"requests": request}
        ''',
    ),
    "environments": Template(
        "environment",
        "from typing import Any\n\nfrom rlrun.plugins.agent_task import AgentTask\n"
        "from rlrun.plugins.environments.turn import Turn",
        "Asks for the letters of the alphabet, one per turn, `limit` of them.",
        '"""Number of letters."""',
        '''
        def tasks(self) -> list[dict[str, Any]]:
            """Returns the tasks as rows. `label` and `metadata` may hold what `reset` needs."""
            question = "Which letter follows {}?"
            return [{"id": a, "prompt": question.format(a), "label": a} for a in "abcdefgh"]

        def reset(self, task: AgentTask) -> None:
            """Begins an execution. It may return the first messages; None stands for the row's prompt."""
            self._letter, self._turns = task.label, 0

        def step(self, action: str) -> Turn:
            """Returns what the policy reads next, the reward of its action, and whether that was the end."""
            self._turns += 1
            self._letter = chr(ord(self._letter) + 1)
            reward = float(action.strip() == self._letter)
            return Turn(f"And {self._letter}?", reward, self._turns == self.params.limit)
        ''',
    ),
    "tools": Template(
        "tool",
        "from collections.abc import Mapping\nfrom typing import Any",
        "Returns the first `limit` words of a text.",
        '"""Largest number of words that a call returns."""',
        '''
        @property
        def schema(self) -> Mapping[str, Any]:
            """The tool's name, description and arguments, as the policy sees them in its prompt."""
            text = {"type": "string", "description": "Any text."}
            function = {
                "name": "NAME",
                "description": "Cuts a text short.",
                "parameters": {"type": "object", "properties": {"text": text}, "required": ["text"]},
            }
            return {"type": "function", "function": function}

        async def call(self, arguments: Mapping[str, Any]) -> str:
            """Returns the text that the policy reads. A ValueError tells the policy what is wrong."""
            if not isinstance(arguments.get("text"), str):
                raise ValueError("text must be a string")
            return " ".join(arguments["text"].split()[: self.params.limit])
        ''',
    ),
    "hooks": Template(
        "hook",
        "from collections.abc import Sequence\n\nfrom rlrun.plugins.types import Group",
        "Trains only on the first `limit` tokens of each response.",
        '"""Number of tokens of a response that are trained on."""',
        '''
        def on_samples(self, groups: Sequence[Group]) -> None:
            """Sees the samples of a step; only their `loss_mask` and `info` may change."""
            for group in groups:
                for sample in group.samples:
                    sample.loss_mask[self.params.limit :] = 0
        ''',
    ),
    "trackers": Template(
        "tracker",
        "from collections.abc import Mapping\nfrom pathlib import Path\nfrom typing import Any",
        "Writes the first `limit` metrics of each step to a text file in the run's folder.",
        '"""Number of metrics to write for each step."""',
        '''
        def start(self, run_folder: str, name: str, spec: Mapping[str, Any]) -> None:
            """Opens the run. A resumed run calls `start` again, with the same folder."""
            self._file = Path(run_folder) / "NAME.txt"

        def log(self, step: int, metrics: Mapping[str, float]) -> None:
            """Writes the metrics of one step."""
            with self._file.open("a") as file:
                for name in sorted(metrics)[: self.params.limit]:
                    file.write(f"{step} {name} {metrics[name]}\\n")

        def close(self) -> None:
            """Ends the run. It is called once, even if `start` was not."""
        ''',
    ),
    "launchers": Template(
        "launcher",
        "import shlex\nfrom collections.abc import Mapping\nfrom pathlib import Path\n\n"
        "from rlrun.plugins.launchers.commands import attempt_words, call_tool, preparation, rlrun_command\n"
        "from rlrun.plugins.submission import Submission, SubmittedState",
        "Queues jobs of one machine with at(1), which starts them with niceness `limit`.",
        '"""Niceness of the job, from 0 to 19."""',
        '''
        def files(self, job: Submission) -> Mapping[str, str]:
            """Returns the script that runs an attempt of the job, which starts Ray on this machine."""
            node = ['node "$RLRUN_CONTROL"', "--rank=0", "--head=127.0.0.1"]
            node += [f"--cpus={job.cpus}", f"--gpus={job.gpus}"]
            start = f"--start-nodes={shlex.quote(rlrun_command(job, *node))}"
            attempt = rlrun_command(job, *attempt_words(job), "--id=$$", start)
            log = shlex.quote(str(self.output(job.folder)))
            begin = ["#!/bin/sh", f"exec >> {log} 2>&1", *preparation(job)]
            lines = [*begin, f"exec nice -n {self.params.limit} {attempt}"]
            return {"job.sh": "".join(f"{line}\\n" for line in lines)}

        def submit(self, job: Submission) -> str:
            """Queues the script; at(1) answers `job 7 at Thu Nov 26 ...` on its standard error."""
            asked = f"batch -f {shlex.quote(str(job.folder / 'job.sh'))} 2>&1"
            return call_tool(["sh", "-c", asked]).rpartition("job ")[2].split()[0]

        def state(self, id: str, folder: Path) -> SubmittedState:
            """Looks for the job in the queue, where `=` marks what runs."""
            for line in call_tool(["atq"]).splitlines():
                if line.split()[0] == id:
                    return SubmittedState("running" if " = " in line else "waiting", line)
            return SubmittedState("ended", "at(1) no longer lists it")

        def cancel(self, id: str, folder: Path) -> None:
            """Takes the job out of the queue."""
            call_tool(["atrm", id])

        def output(self, folder: Path) -> Path:
            """Returns the file with what the job printed."""
            return folder / "output.txt"
        ''',
    ),
    "algorithms": Template(
        "algorithm",
        "from collections.abc import Sequence\nfrom typing import Any\n\nimport numpy as np\n\n"
        "from rlrun.plugins.types import Group, LossInputs, LossOutputs, Needs",
        "Policy gradient whose advantages are the rewards, clipped to `limit`.",
        '"""Largest absolute value of an advantage."""',
        '''
        @property
        def needs(self) -> Needs:
            """What the trainer must provide: here neither a reference model nor a critic."""
            return Needs()

        def advantages(self, groups: Sequence[Group]) -> list[Any]:
            """Returns one float32 array for each sample, with one number for each token `[R]`."""
            limit = self.params.limit
            return [
                np.full(len(sample.tokens), np.clip(np.nan_to_num(sample.reward), -limit, limit), np.float32)
                for group in groups
                for sample in group.samples
            ]

        def loss(self, inputs: LossInputs) -> LossOutputs:
            """Returns one loss for each token `[T]`. rlrun applies the loss mask and reduces the losses."""
            ratio = (inputs.log_probs - inputs.old_log_probs).exp()
            return LossOutputs(-ratio * inputs.advantages, {"ratio": ratio.detach()})
        ''',
    ),
}

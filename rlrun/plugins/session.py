"""What a rollout receives: its access to the policy, and the tokenizer. The framework implements these
protocols.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rlrun.plugins.engines import ServedEngine
from rlrun.plugins.generation import Generation, Sampling
from rlrun.plugins.images import Image, PlacedImage
from rlrun.plugins.types import Message, Prompt

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Tokens = NDArray[np.int32]


class Chat(Protocol):
    """The model's tokenizer and chat template."""

    @property
    def eos_token_ids(self) -> Sequence[int]:
        """The tokens that end a response."""

    @property
    def vocab_size(self) -> int:
        """The number of token ids: every token of a text is below it."""

    @property
    def image_placeholder(self) -> int | None:
        """The token id that stands for images; None if the model reads no images."""

    def encode(self, text: str) -> Tokens:
        """Returns the tokens of a text. Names of special tokens in it become these tokens; none are added.

        Do not use it for text from other sources, which could end a turn: put such text into a message for
        `render` or `follow_up`.
        """

    def decode_batch(self, batch: Sequence[Tokens], *, special: bool = False) -> list[str]:
        """Returns the texts of token sequences, with special tokens if `special` is set."""

    def plain(self, text: str) -> str:
        """Returns a text without the names of special tokens."""

    def place(self, images: Sequence[Image]) -> tuple[PlacedImage, ...]:
        """Returns images with the number of tokens that each takes in the model.

        Raises ValueError if the model reads no images, or its processor refuses one of them.
        """

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        images: Sequence[PlacedImage] = (),
    ) -> Tokens:
        """Returns a conversation, rendered by the chat template up to the beginning of the policy's answer.
        `images`: those that the messages' parts of type image stand for, in order.

        The texts of messages and tools are kept, and names of control tokens in them are plain text, so that
        no tool, page or agent can end or begin a turn. Raises ValueError if the template refuses the
        conversation, or would assemble control tokens from these texts.
        """

    def follow_up(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        images: Sequence[PlacedImage] = (),
    ) -> tuple[Tokens, Tokens]:
        """Returns the tokens that the template puts between the text of an answer and that of the next.

        The first part is the token that ends the answer (`[1]`; the policy generated it itself unless it was
        cut off). The second is `messages` and the header of the next answer. As in `render`, texts of
        messages cannot end a turn.
        """


class Session(Protocol):
    """One execution's access to the policy."""

    @property
    def id(self) -> str:
        """The id of the execution, unique in the run."""

    @property
    def prompt(self) -> Prompt:
        """The prompt that the execution starts from."""

    @property
    def seed(self) -> int:
        """The seed for random choices of the rollout; it depends on the run's seed, the prompt and the
        sample's number.
        """

    @property
    def sampling(self) -> Sampling:
        """The spec's sampling settings; `max_new_tokens` limits all tokens of the execution together."""

    @property
    def max_tokens(self) -> int:
        """The length limit of a sample, including its prompt."""

    @property
    def max_turn_tokens(self) -> int:
        """The length limit of the answer to one `generate`."""

    @property
    def chat(self) -> Chat:
        """The model's tokenizer and chat template."""

    @property
    def version(self) -> int:
        """The version of the weights that the engines were given last."""

    async def generate(
        self,
        tokens: Tokens,
        sampling: Sampling | None = None,
        images: Sequence[PlacedImage] | None = None,
    ) -> Generation:
        """Returns the policy's continuation of `tokens`, within `max_tokens` and `max_turn_tokens`.

        `sampling` replaces the spec's settings. `images`: those of the tokens' placeholders; None: those of
        the session's prompt. Once the execution is no longer needed, the answer is empty
        and its finish is `abort`; if `max_tokens` leaves no room, it is empty and its finish is `length`. A
        limit in `sampling` also gives `length`, which makes the trajectory a truncated one: set the
        trajectory's `status` if the rollout wanted a short answer. Do not catch errors: they fail the
        execution.
        """

    def engine(self, name: str) -> ServedEngine:
        """Returns a client of the model of `[[engines]]` with this name, for instance a simulated user; its
        seeds follow from the session's. Raises ValueError if the job has no such engines.
        """


class SessionGroup(Protocol):
    """All executions of a prompt."""

    @property
    def prompt(self) -> Prompt:
        """The prompt that the executions start from."""

    @property
    def sessions(self) -> Sequence[Session]:
        """One session for each execution."""

    async def generate(
        self,
        tokens: Tokens,
        sampling: Sampling | None = None,
        images: Sequence[PlacedImage] | None = None,
    ) -> list[Generation]:
        """Asks the policy the same question for every execution at once, and returns one answer for each."""

"""One conversation of the policy, token by token, with the room that it has left.

The tokens of an answer are kept as the policy made them, and what the chat template puts between two answers
is added: nothing is tokenised twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rlrun.plugins.generation import Trajectory
from rlrun.plugins.images import PlacedImage
from rlrun.plugins.session import Session
from rlrun.plugins.types import Message


@dataclass(slots=True)
class TurnByTurn:
    """The conversation so far, and what room it has."""

    session: Session
    trajectory: Trajectory

    @property
    def room(self) -> int:
        """Number of tokens that the response may still get, in all its further turns together."""
        longest = len(self.trajectory.prompt) + self.session.sampling.max_new_tokens
        return min(longest, self.session.max_tokens) - len(self.trajectory)

    async def ask(self) -> str:
        """Returns the policy's next answer, with special tokens except the end token; "" if it is empty."""
        limited = self.session.sampling.limited(self.room)
        prompt_images = self.trajectory.prompt_images
        prompt_images = self.session.prompt.images if prompt_images is None else prompt_images
        images = (*prompt_images, *self.trajectory.images)
        generation = await self.session.generate(self.trajectory.tokens(), limited, images)
        self.trajectory.add(generation)
        tokens = generation.tokens
        if len(tokens) and tokens[-1] in self.session.chat.eos_token_ids:
            tokens = tokens[:-1]
        [text] = self.session.chat.decode_batch([tokens], special=True)
        return text

    def give(
        self, messages: Sequence[Message], images: Sequence[PlacedImage] = (), cross_entropy: float = 0.0
    ) -> bool:
        """Adds messages after an answer. Returns False, and adds nothing, if no answer fits after them.

        `cross_entropy` is the weight of their tokens in the loss; messages with images have none.
        """
        chat = self.session.chat
        end, tokens = chat.follow_up(messages, images=images)
        answer = self.trajectory.turns[-1].tokens
        ended = answer[-1] in chat.eos_token_ids  # not where a stop string ended it
        if self.room <= len(tokens) + (not ended):
            return False
        if not ended:
            self.trajectory.give(end)
        self.trajectory.give(tokens, images, 0.0 if images else cross_entropy)
        return True

    def insert(self, text: str, cross_entropy: float = 0.0) -> bool:
        """Adds text after an answer, within the same turn. Returns False, and adds nothing, if no answer fits
        after it. Names of special tokens in the text are left out.
        """
        tokens = self.session.chat.encode(self.session.chat.plain(text))
        if self.room <= len(tokens):
            return False
        self.trajectory.give(tokens, (), cross_entropy)
        return True

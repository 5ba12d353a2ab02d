"""Delivers one version of the weights to several engines at once, by the carrier that the trainer chose.

    stored      driver ──where the weights are──▶ every engine reads them: shared memory, a buffer, a folder
    streamed    trainer ──bucket──▶ every engine, bucket after bucket           rlrun.runner.weights.transfer

The trainer's side is rlrun.runner.weights.writer. An engine that fails is returned with its error and does
not keep the other engines from getting their weights.
"""

from rlrun.runner.contracts.weight_updates import (
    Readers,
    Recipient,
    StoredWeights,
    StreamedWeights,
    WeightUpdate,
)
from rlrun.runner.weights.transfer import (
    Clients,
    Failures,
    Transfer,
    WeightClient,
    call_each,
    check_version,
    is_lost,
)


class Delivery:
    """Delivers weights to the engines of a pool, and remembers what each engine has."""

    def __init__(self, engines: int) -> None:
        """`engines`: the number of engines in the pool."""
        self._lives = [0] * engines
        """How often each engine was lost; a restarted engine's processes are other members of a group."""
        self._delivered: dict[int, int] = {}
        """The version that each engine has."""
        self._reads: dict[int, int] = {}
        """How often each engine read the current version: every read needs payloads of its own."""
        self._version = -1

    def forget(self, engine: int) -> None:
        """Notes that an engine was lost: when it is started again it has none of the weights."""
        self._lives[engine] += 1
        self._delivered.pop(engine, None)

    def forget_versions(self) -> None:
        """Notes that a restarted trainer numbers its versions anew: no engine has any of them."""
        self._delivered.clear()

    async def deliver(self, update: WeightUpdate, clients: Clients) -> Failures:
        """Gives these engines new weights; returns the errors of engines that do not serve them now.

        Raises WeightsMoved where the trainer has other weights by now; no engine was given any then.
        """
        if update.version != self._version:
            self._version, self._reads = update.version, {}
        if isinstance(update, StreamedWeights):
            failures = await self._stream(update, clients)
        else:
            failures = await call_each(
                clients, lambda engine, client: self._read_stored(engine, client, update)
            )
        for engine in clients:
            if engine in failures:
                self.forget(engine)
            else:
                self._delivered[engine] = update.version
        return failures

    async def _read_stored(self, engine: int, client: WeightClient, update: StoredWeights) -> None:
        """Has one engine read its share of stored weights."""
        reads = self._reads.get(engine, 0)
        recipient = Recipient(engine, len(self._lives), self._delivered.get(engine), reads)
        share = update.for_engine(recipient)
        self._reads[engine] = reads + 1
        check_version(client, await client.update_weights(share), update.version)

    async def _stream(self, update: StreamedWeights, clients: Clients) -> Failures:
        """Streams to all engines.

        Where a lost engine breaks a broadcast, it makes the other engines fail too: they get another attempt.
        """
        assert update.trainer is not None, "streamed weights come from a trainer"
        failures: Failures = {}
        while clients:
            lives = tuple(self._lives[engine] for engine in clients)
            readers = Readers(tuple(clients), lives, update.readers)
            async with update.trainer.hand_over(update.version, readers) as streams:
                transfer = Transfer(update, clients, streams)
                await transfer.run()
            failed, served = transfer.failures, transfer.served
            if not served and any(map(is_lost, failed.values())):
                failed = {engine: error for engine, error in failed.items() if is_lost(error)}
            failures |= failed
            clients = {
                engine: client for engine, client in clients.items() if engine not in {*failed, *served}
            }
        return failures

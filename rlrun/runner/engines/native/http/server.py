"""Serves the native engine over SGLang's HTTP protocol.

client --HTTP--> server thread (asyncio) --samples--> engine thread
       <-answers-                        <-done---'
"""

import asyncio
import socket
import threading

from aiohttp import web

from rlrun.runner.engines.native.engine.engine import Engine
from rlrun.runner.engines.native.engine.loading import load
from rlrun.runner.engines.native.engine.setup import EngineSetup
from rlrun.runner.engines.native.http.bodies import GENERATE_BYTES, answer_user_errors, engine_guard
from rlrun.runner.engines.native.http.channel import ChannelEndpoint
from rlrun.runner.engines.native.http.control import ControlEndpoints
from rlrun.runner.engines.native.http.generation import GenerationEndpoints


class NativeServer:
    """An engine and its HTTP server in this process, with one thread each."""

    def __init__(self, setup: EngineSetup) -> None:
        self._setup = setup
        self._engine: Engine | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rlrun-engine-http", daemon=True)
        self._runner: web.AppRunner | None = None
        self._control: ControlEndpoints | None = None

    def start(self) -> str:
        """Loads the model, starts to serve, and returns the URL.

        Raises ValueError for a model, a length or a port that cannot work.
        """
        listener = _listen(self._setup.host, self._setup.port)
        try:
            self._engine = Engine(load(self._setup), self._setup.threads)
        except BaseException:
            listener.close()
            raise
        self._engine.start()
        self._control = ControlEndpoints(self._engine, self._setup)
        self._thread.start()
        serving = asyncio.run_coroutine_threadsafe(
            self._serve(self._engine, self._control, listener), self._loop
        )
        self._runner = serving.result(30)
        host, port = listener.getsockname()[:2]
        return f"http://{host}:{port}"

    def stop(self) -> None:
        """Aborts and answers running requests, and ends both threads. May be called twice."""
        engine, self._engine = self._engine, None
        if engine is None:
            return
        engine.stop()
        if self._control is not None:
            self._control.close()
        if self._runner is not None:
            asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    async def _serve(
        self, engine: Engine, control: ControlEndpoints, listener: socket.socket
    ) -> web.AppRunner:
        generation = GenerationEndpoints(engine, self._setup)
        guard = engine_guard(self._setup.host, self._setup.api_key)
        app = web.Application(client_max_size=GENERATE_BYTES, middlewares=[guard, answer_user_errors])
        app.add_routes([*generation.routes(), *control.routes()])
        ChannelEndpoint(generation.answer).add_to(app)
        # Cancels the handler when a client closes the connection, so that its samples are not generated to
        # the end.
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await runner.setup()
        await web.SockSite(runner, listener, shutdown_timeout=5).start()
        return runner


def _listen(host: str, port: int | None) -> socket.socket:
    """Returns a bound socket. Raises ValueError with the port if it is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port or 0))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise ValueError(
            f"the engine cannot listen on port {port} of {host}: {error.strerror}. "
            "Set engine.port to a free port, or remove it to use any free port"
        ) from error
    return listener

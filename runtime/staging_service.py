"""What both services are: one loop thread with its workers, the engine's two ways in, the observers, and an orderly end."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Self

from runtime.commands import Commands, InProcessCalls
from runtime.compiled_copies import require_compiled_copies
from runtime.endpoint import Context, open_context
from runtime.engine_endpoint import EngineEndpoint
from runtime.engine_protocol import EngineError
from runtime.flight_recorder import CRASH, SIGNAL, FlightRecorder
from runtime.loop import EventLoop
from runtime.loop_thread import LoopThread
from runtime.observation import Describe
from runtime.observed import Observed
from runtime.open_files import require_open_files
from runtime.room_waiters import RoomKey, RoomOutcome, RoomWaiters
from runtime.service_settings import ServiceSettings
from runtime.shutdown import Shutdown
from runtime.telemetry import Telemetry
from runtime.workers import WorkerPool

LINGER_MS = 500
"""How long last words may take to leave at an orderly end."""
RANKS_OF_ONE_IO_THREAD = 3


class StagingService(ABC):
    """Hosts the ranks of one daemon. ``start``, then ``request_stop`` from anywhere, then ``join``.

    A subclass names its commands with ``offer`` when it is made.
    """

    def __init__(self, side: str, service_id: str, settings: ServiceSettings, max_sockets: int) -> None:
        self._side = side
        self._service_id = service_id
        self._settings = settings
        self._max_sockets = max_sockets
        self._loop = EventLoop()
        self._waiters = RoomWaiters()
        self._workers = WorkerPool(self._loop, settings.worker_threads, f"{service_id}-worker")
        self._shutdown = Shutdown(self._loop, self, settings.drain_s)
        limits, folder = settings.flight_limits, settings.runtime_dir
        self._flight = FlightRecorder(service_id, folder, limits, len(settings.ranks), self._loop.clock)
        self._thread = LoopThread(self._loop, f"{service_id}-loop", self._clean_up, partial(self._flight.dump, CRASH))
        self._resources = ExitStack()
        self._observed: Observed | None = None

    def offer(self, commands: Commands, describe: Describe) -> None:
        """What an engine may command, and what the metrics say."""
        self._commands = commands
        self._calls = InProcessCalls(self._loop, commands, self._settings.max_engine_requests)
        self._describe = describe

    @property
    def endpoints(self) -> Mapping[str, str]:
        """Where the daemon can be reached: the engine's socket, and its HTTP port."""
        http = None if self._observed is None else self._observed.address
        return {**({} if http is None else {"http": http}), "engine": str(self._settings.engine_socket)}

    def start(self) -> None:
        """Take every port, lock and byte that the daemon needs, then begin. Raises ``StartError`` and leaves nothing."""
        with ExitStack() as undo:
            self._open(undo)
            self._resources = undo.pop_all()
        self._thread.start()
        if self._observed is not None:
            self._observed.start()

    def request_stop(self) -> None:
        """Begin the orderly end: drain, then leave. Any thread, any number of times."""
        self._loop.call_soon_threadsafe(self._shutdown.request)

    @abstractmethod
    def reload(self) -> None:
        """Read key files and lists again. Any thread, any number of times."""

    def dump_flight(self) -> None:
        """Write down the latest of what entered the machines. Any thread, even while the loop hangs."""
        self._flight.dump(SIGNAL)

    def join(self) -> int:
        """Wait for the end: 0 if it was orderly, 1 if the daemon broke."""
        return self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.request_stop()
        self.join()

    # ---- what a side does at each phase of the end, called by ``Shutdown`` ----------------------------------------------

    @abstractmethod
    def begin_drain(self) -> None:
        """Take nothing new."""

    @abstractmethod
    def is_idle(self) -> bool:
        """Whether nothing is under way any more."""

    @abstractmethod
    def begin_leaving(self) -> None:
        """Fail the rooms that are left and say goodbye."""

    @abstractmethod
    def has_left(self) -> bool:
        """Whether no copy of ours runs and nothing is left to say."""

    # ---- opening and closing --------------------------------------------------------------------------------------------

    @abstractmethod
    def open_ranks(self, context: Context, telemetry: Telemetry, undo: ExitStack) -> None:
        """Open what belongs to the side: sockets, memory, machines. Raises ``StartError``."""

    def room_ended(self, outcome: RoomOutcome) -> None:
        """Tell the engines that wait for it."""
        self._waiters.resolve(RoomKey(outcome.rank, outcome.room), outcome)

    def _open(self, undo: ExitStack) -> None:
        settings = self._settings
        require_open_files(len(settings.ranks))
        require_compiled_copies(wanted=settings.compiled_copies)
        undo.callback(self._loop.close)
        context = open_context(1 if len(settings.ranks) <= RANKS_OF_ONE_IO_THREAD else 2, self._max_sockets)
        undo.callback(context.term)
        self._observed = observed = Observed(self._side, self._service_id, settings.otlp_endpoint, undo)
        endpoint = EngineEndpoint(context, settings.engine_socket, settings.max_engine_requests, self._commands.execute)
        undo.callback(endpoint.close, LINGER_MS)
        self.open_ranks(context, observed.telemetry, undo)
        # Undone first: no copy may run any more when the rings are unmapped.
        undo.callback(self._workers.close)
        self._loop.add_reader(endpoint.socket, endpoint.read)
        for timed in (self._waiters, self._shutdown, self._flight):
            self._loop.add_timed(timed)
        observed.listen(settings.http_host, settings.http_port, self._calls.call, self._describe)

    def _clean_up(self) -> None:
        self._waiters.fail_all(EngineError("closed", "the daemon stopped before the room ended"))
        self._resources.close()
        self._calls.close()
        self._flight.close()

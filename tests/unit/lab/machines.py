"""The real machines of both sides, joined without sockets: every message arrives at once and every copy succeeds."""

from collections import deque
from random import Random

from decode_service import outputs as decode_outputs
from decode_service.allocator import StagingAllocator
from decode_service.handler import DecodeStagingHandler
from decode_service.handler_settings import DecodeHandlerSettings, PlaneOffer
from lab.defects import AlteredDecodeHandler, PrefillWithoutRepair
from lab.stall import Snapshot
from prefill_service import outputs as prefill_outputs
from prefill_service.handler import PrefillStagingHandler
from prefill_service.handler_settings import PrefillHandlerSettings
from protocol.layout import ModelLayout, PageRun, RankLayout, TensorSpec
from protocol.messages import WatermarkUpdate

ENDPOINT = "tcp://127.0.0.1:7600"
MODEL = ModelLayout(((TensorSpec("k", 1, 1, "uint8"),),))
LAYOUT = RankLayout(MODEL, 0, 1, 0, 1, (0, 1))
"""One byte per token, so that bytes of the ring are tokens."""

RING_BYTES = 100
CHUNK_TOKENS = 100


class JoinedMachines:
    """One decode machine and any number of prefill machines, at a time that the test moves by hand."""

    def __init__(self, *, restart: bool = True, snapshot: bool = True, repair: bool = True) -> None:
        self.now = 0.0
        self.repair = repair
        settings = DecodeHandlerSettings(
            decode_id="decode",
            decode_rank=0,
            decode_incarnation=1,
            epoch=1,
            host_id="host",
            layout=LAYOUT,
            chunk_tokens=CHUNK_TOKENS,
            planes=(PlaneOffer("shm", {}, two_sided=False, same_host=True),),
        )
        self.decode: DecodeStagingHandler = AlteredDecodeHandler(
            settings, StagingAllocator(RING_BYTES), Random(0), restart=restart, snapshot=snapshot, repair=repair
        )
        self.prefills: dict[str, PrefillStagingHandler] = {}
        self.dropped_watermarks = 0
        self.drop_watermarks = False
        self._pending: deque[tuple[str, object]] = deque()

    def send(self, room: str, prefill: str, num_tokens: int) -> bool:
        """Register a room, submit it as one chunk, let everything happen that can, and say whether it completed."""
        self._decode(self.decode.register_room(room, prefill, num_tokens, PageRun((0,)), self.now))
        machine = self._prefill_machine(prefill)
        pages = PageRun((0,))
        self._prefill(prefill, machine.submit_chunk(room, [ENDPOINT], 0, num_tokens, pages, self.now))
        self._prefill(prefill, machine.finish_room(room, self.now))
        self._settle()
        return self.decode.room_end(room) is not None

    def wait(self, seconds: float) -> None:
        """Let time pass in small steps, with everything that it brings."""
        until = self.now + seconds
        while self.now < until:
            self.now += 0.05
            self._decode(self.decode.tick(self.now))
            for prefill, machine in self.prefills.items():
                self._prefill(prefill, machine.tick(self.now))
            self._settle()

    def snapshots(self) -> tuple[list[Snapshot], list[Snapshot]]:
        """What the daemons' ``inspect`` would say."""
        return [self.decode.snapshot()], [machine.snapshot() for machine in self.prefills.values()]

    def _prefill_machine(self, prefill: str) -> PrefillStagingHandler:
        if prefill not in self.prefills:
            settings = PrefillHandlerSettings(
                prefill_id=prefill,
                group=prefill,
                incarnation=1,
                layout=LAYOUT,
                page_size=CHUNK_TOKENS,
                chunk_tokens=CHUNK_TOKENS,
                planes=("shm",),
                host_id="host",
            )
            kind = PrefillStagingHandler if self.repair else PrefillWithoutRepair
            self.prefills[prefill] = kind(settings, Random(0))
        return self.prefills[prefill]

    def _settle(self) -> None:
        while self._pending or self.decode.has_fan_out:
            if not self._pending:
                self._decode(self.decode.fan_out(self.now, 100))
                continue
            prefill, output = self._pending.popleft()
            if prefill:
                self._act_for_prefill(prefill, output)
            else:
                self._act_for_decode(output)

    def _decode(self, outputs: tuple[decode_outputs.Output, ...]) -> None:
        self._pending.extend(("", output) for output in outputs)

    def _prefill(self, prefill: str, outputs: tuple[prefill_outputs.Output, ...]) -> None:
        self._pending.extend((prefill, output) for output in outputs)

    def _act_for_decode(self, output: object) -> None:
        if isinstance(output, decode_outputs.Send):
            prefill = output.route.decode()
            if self.drop_watermarks and isinstance(output.message, WatermarkUpdate):
                self.dropped_watermarks += 1
            else:
                self._prefill(prefill, self.prefills[prefill].receive(ENDPOINT, output.message, self.now))
        elif isinstance(output, decode_outputs.ScatterChunk):
            self._decode(self.decode.scatter_finished(output.alloc_id, (), self.now))

    def _act_for_prefill(self, prefill: str, output: object) -> None:
        machine = self.prefills[prefill]
        if isinstance(output, prefill_outputs.Send):
            self._decode(self.decode.receive(prefill.encode(), output.message, self.now))
        elif isinstance(output, prefill_outputs.OpenPlane):
            self._prefill(prefill, machine.plane_opened(output.peer, output.session, self.now))
        elif isinstance(output, prefill_outputs.WriteChunk):
            self._prefill(prefill, machine.write_finished(output.write_id, 0, self.now))

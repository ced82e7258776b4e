"""One request of known bytes between two running daemons, before any engine is there: it shows that they reach each other.

Run each half beside its own daemon, in either order, with the same room; use a new room for every try::

    python examples/first_contact.py decode SOCKET --room hello-1 --group prefill-a
    python examples/first_contact.py prefill SOCKET --room hello-1 --endpoint tcp://decode-a:7600

It plays the engine of rank 0 with a cache of one layer. A daemon keeps the layout of its first pool for life, so start both
daemons anew before the real engines come.
"""

import argparse
import sys
from pathlib import Path

from decode_service.engine import DecodeEngineClient
from prefill_service.engine import PrefillEngineClient
from protocol.layout import ModelLayout, PageRun, RankLayout, TensorSpec
from runtime.engine_protocol import EngineError
from runtime.pool import KvPool
from runtime.pool_layout import arrange_pool
from runtime.room_waiters import RoomOutcome

MODEL = ModelLayout(((TensorSpec("k", heads=1, width=64, dtype="float16"),),))
LAYOUT = arrange_pool(RankLayout(MODEL, tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, stage_bounds=(0, 1)), 16, 4)
PAGES = PageRun((0, 1, 2, 3))
TOKENS = 64
VALUE = 7
ANSWER_S = 10.0


def send(arguments: argparse.Namespace, pool: KvPool) -> RoomOutcome:
    """The prefill's half: every byte is ``VALUE``."""
    pool.memory[:] = VALUE
    with PrefillEngineClient(arguments.socket) as engine:
        engine.register_pool(0, pool.descriptor).result(ANSWER_S)
        engine.submit_chunk(arguments.room, 0, [arguments.endpoint], 0, TOKENS, PAGES).result(ANSWER_S)
        engine.finish_room(arguments.room, 0).result(ANSWER_S)
        return engine.wait_room(arguments.room, 0, arguments.seconds).result(arguments.seconds + ANSWER_S)


def receive(arguments: argparse.Namespace, pool: KvPool) -> RoomOutcome:
    """The decode's half. Raises ``ValueError`` if what came is not what was sent."""
    with DecodeEngineClient(arguments.socket) as engine:
        engine.register_pool(0, pool.descriptor).result(ANSWER_S)
        engine.register_room(arguments.room, 0, arguments.group, TOKENS, PAGES).result(ANSWER_S)
        outcome = engine.wait_room(arguments.room, 0, arguments.seconds).result(arguments.seconds + ANSWER_S)
    if outcome.done and not (pool.memory == VALUE).all():
        raise ValueError("the room is complete, and its bytes are wrong")
    return outcome


def main() -> int:
    """Play one half; 0 if the room was completed."""
    parser = argparse.ArgumentParser(description="Move one request of known bytes between two running daemons.")
    parser.add_argument("side", choices=("decode", "prefill"))
    parser.add_argument("socket", type=Path, help="the daemon's engine socket, as its event daemon_ready names it")
    parser.add_argument("--room", required=True, help="the same on both sides, and new for every try")
    parser.add_argument("--group", default="prefill", help="group of the prefill daemon (decode side)")
    parser.add_argument("--endpoint", default="tcp://127.0.0.1:7600", help="control endpoint of the decode rank (prefill side)")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long to wait for the other side")
    arguments = parser.parse_args()
    path = Path(f"/dev/shm/first-contact-{arguments.side}-{arguments.room}")  # noqa: S108 - refused if it exists
    with KvPool.create(path, LAYOUT) as pool:
        try:
            outcome = send(arguments, pool) if arguments.side == "prefill" else receive(arguments, pool)
        except EngineError as error:
            print(f"{arguments.side}: {error}; ask {arguments.side}-service explain", file=sys.stderr)
            return 1
        finally:
            pool.unlink()
    print(f"{arguments.side}: {'every byte arrived' if outcome.done else f'{outcome.code}: {outcome.message}'}")
    return 0 if outcome.done else 1


if __name__ == "__main__":
    sys.exit(main())

"""The engines keep their loop closed, and use an id again only when everybody has forgotten it."""

from itertools import pairwise

from lab.simulator.options import Faults, Options
from lab.simulator.rules import Rules
from lab.simulator.world import World


def play(options: Options, until: float = 60.0) -> World:
    """A world without planned faults, some time on."""
    world = World(options, Rules())
    world.start()
    world.play(until)
    return world


def test_no_more_rooms_are_open_than_asked_for() -> None:
    """With one at a time the next begins when the former has ended."""
    world = play(Options(seed=2, requests=4, concurrency=1))
    assert world.engines.idle
    requests = sorted(world.engines.requests.values(), key=lambda request: request.began)
    assert all(former.ended is not None and former.ended <= later.began for former, later in pairwise(requests))


def test_ids_come_back_with_other_content() -> None:
    """A second room of that id is done as well, from its own bytes."""
    world = play(Options(seed=2, requests=2, room_deadline_s=6.0, faults=Faults(reused_rooms=2)))
    assert world.results["ids_used_again"]
    again = [request for request in world.engines.requests.values() if request.content.endswith("+")]
    assert again
    assert all(world.decodes["d0"].ended[request.room] == (True, "") for request in again)


def test_careless_engines_are_refused_and_do_no_harm() -> None:
    """Whatever is said twice changes nothing; what is never said fails in time."""
    world = play(Options(seed=2, requests=3, faults=Faults(repeated_calls=1.0)))
    assert world.results["repeated_calls"]
    assert all(done for done, _ in world.decodes["d0"].ended.values())
    world = play(Options(seed=2, requests=1, room_deadline_s=6.0, faults=Faults(unregistered_rooms=1)))
    assert world.prefills["p00"].ended == {"r0": (False, "unknown_room")}

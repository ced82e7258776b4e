"""The map form of a pool description."""

import json
from typing import Any

import msgpack
import pytest

from lab.presets import PRESETS
from protocol.layout import RankLayout
from runtime.pool_descriptor import PoolDescriptor
from runtime.pool_layout import PoolError, arrange_pool

RANK = RankLayout(PRESETS["tiny"].model, 3, 8, 0, 1, (0, 4))
DESCRIPTOR = PoolDescriptor("/dev/shm/pool", arrange_pool(RANK, 16, 10))


def test_a_descriptor_survives_msgpack_and_json() -> None:
    """What an engine sends is what the daemon reads, in either encoding."""
    body = DESCRIPTOR.to_map()
    assert PoolDescriptor.from_map(msgpack.unpackb(msgpack.packb(body))) == DESCRIPTOR
    assert PoolDescriptor.from_map(json.loads(json.dumps(body))) == DESCRIPTOR


def broken(path: str, value: object) -> dict[str, Any]:
    """The good map with the item at a dotted path replaced."""
    body: Any = json.loads(json.dumps(DESCRIPTOR.to_map()))
    *parents, last = path.split(".")
    item = body
    for key in parents:
        item = item[int(key)] if isinstance(item, list) else item[key]
    item[last] = value
    return body  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("path", "relative/pool", "pool descriptor path: expected an absolute path"),
        ("path", "/dev/shm/a\0b", "pool descriptor path: expected an absolute path"),
        ("path", 7, "pool descriptor path: expected"),
        ("layout", None, "pool descriptor layout: expected a map"),
        ("layout.page_size", 0, "pool descriptor layout.page_size: expected an integer from 1"),
        ("layout.tensors.2.offset", -1, r"pool descriptor layout.tensors\[2\].offset: expected an integer from 0"),
        ("layout.tensors.0.page_stride", "64", r"pool descriptor layout.tensors\[0\].page_stride: expected an integer"),
        ("layout.rank.tp_size", 10**9, "pool descriptor layout.rank.tp_size: expected an integer from 1"),
    ],
)
def test_a_map_that_is_no_descriptor_names_the_field_and_what_was_expected(path: str, value: object, complaint: str) -> None:
    """An engine's mistake is answered with the path of the field."""
    with pytest.raises(PoolError, match=complaint):
        PoolDescriptor.from_map(broken(path, value))

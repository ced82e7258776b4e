"""The bounds agree with each other."""

from protocol import limits


def test_every_bound_is_a_positive_number() -> None:
    """No bound is missing, zero or negative."""
    bounds = {name: value for name, value in vars(limits).items() if name.isupper()}
    assert bounds
    assert all(isinstance(value, int | float) and value > 0 for value in bounds.values())


def test_a_room_can_be_cut_into_chunks_of_any_size() -> None:
    """The largest room with chunks of one token still has a legal last chunk index."""
    assert limits.MAX_CHUNK_TOKENS <= limits.MAX_ROOM_TOKENS <= limits.MAX_UINT63


def test_negotiation_always_fits_one_message() -> None:
    """Layout, names, descriptor and ids at their bounds stay below the size of a control message.

    A tensor costs its name, dtype, two integers of 5 bytes and 36 bytes of keys and headers; a run of layers at most 4 bytes
    for each of its layers; a stage bound 3 bytes; a descriptor entry 4 bytes of headers.
    """
    tensor = limits.MAX_TENSOR_NAME_BYTES + limits.MAX_DTYPE_BYTES + 2 * 5 + 36
    layout = limits.MAX_LAYOUT_TENSORS * tensor + limits.MAX_LAYERS * 4 + (limits.MAX_LAYERS + 1) * 3
    names = limits.MAX_NAMES * (limits.MAX_ID_BYTES + 2)
    descriptor = limits.MAX_DESCRIPTOR_BYTES + limits.MAX_MAP_KEYS * 4
    ids_and_numbers = 6 * (limits.MAX_ID_BYTES + 2) + 512
    assert layout + max(2 * names, names + descriptor) + ids_and_numbers <= limits.MAX_CONTROL_MESSAGE_BYTES
    diff = limits.MAX_DIFFERENCES * (3 * (limits.MAX_DIFFERENCE_TEXT_BYTES + 3) + 23)
    assert diff + limits.MAX_TEXT_BYTES + 128 <= limits.MAX_CONTROL_MESSAGE_BYTES


def test_what_the_wire_allows_fits_an_array() -> None:
    """No list the tables allow is longer than the unpacker lets through."""
    assert max(limits.MAX_LAYERS + 1, limits.MAX_NAMES, limits.MAX_DIFFERENCES) <= limits.MAX_LIST_ITEMS
    assert limits.MAX_DATA_PIECE_BYTES > limits.MAX_CONTROL_MESSAGE_BYTES

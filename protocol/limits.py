"""Every number that bounds what a peer can make this side hold, do or believe.

A frame that breaks one of these is dropped before anything is stored. Units are in the names.
"""

from typing import Final

MAX_CONTROL_MESSAGE_BYTES: Final = 64 * 1024
MAX_FRAMES: Final = 4
MAX_MAP_KEYS: Final = 64
MAX_DEPTH: Final = 8
"""Containers inside containers, the body itself counted; the layout is the deepest that is defined, with seven."""
MAX_ID_BYTES: Final = 128
MAX_TEXT_BYTES: Final = 1024
"""Human-readable ``reason`` and ``message`` texts; longer ones are cut by the sender and refused from a peer."""

MAX_UINT63: Final = 2**63 - 1
MAX_UINT64: Final = 2**64 - 1
MAX_RANKS: Final = 4096
MAX_LAYERS: Final = 1024
MAX_TENSORS_PER_LAYER: Final = 16
MAX_HEADS: Final = 65_536
MAX_HEAD_BYTES: Final = 1 << 20
MAX_CHUNK_TOKENS: Final = 1 << 24
MAX_ROOM_TOKENS: Final = 1 << 31
MAX_ATTEMPT: Final = 1 << 31
MAX_DURATION_S: Final = 86_400.0
MAX_LIST_ITEMS: Final = 4096
MAX_DATA_PIECE_BYTES: Final = 16 << 20
MAX_NAMES: Final = 16
"""Entries of ``features`` and of ``planes``."""
MAX_VERSION: Final = 65_535

# Bounds that together keep every SUBSCRIBE, SUBSCRIBED and REFUSED below MAX_CONTROL_MESSAGE_BYTES.
MAX_LAYOUT_TENSORS: Final = 512
"""Tensor descriptions of a layout on the wire, that is after equal consecutive layers were merged."""
MAX_TENSOR_NAME_BYTES: Final = 32
MAX_DTYPE_BYTES: Final = 16
MAX_DESCRIPTOR_BYTES: Final = 4096
"""All keys and values of a region descriptor together; an integer counts as nine."""
MAX_DIFFERENCES: Final = 64
MAX_DIFFERENCE_TEXT_BYTES: Final = 256

"""Memory that an engine owns, as plain bytes: anything with the buffer protocol, else anything that speaks DLPack.

Tensors of torch have no buffer protocol, and numpy takes the older form of DLPack for read-only, since that form cannot say
otherwise. An engine that hands its pages over means them to be written, so they are.
"""

import ctypes
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_HOST_DEVICES: Final = {1, 3}
"""DLPack's numbers of ordinary memory and of host memory that is pinned for a GPU."""
_AS_BYTES = "hand it over as bytes, for example tensor.view(torch.uint8) or array.view(numpy.uint8)"


class UnusableMemory(ValueError):
    """An object whose memory cannot be used as bytes; the message says why and what to do."""


def bytes_of(owner: Any) -> NDArray[np.uint8]:  # noqa: ANN401 - whatever has one of the two protocols
    """The contiguous bytes of ``owner``, which they keep alive; nothing is copied. Raises ``UnusableMemory``."""
    try:
        view = memoryview(owner)
    except (TypeError, ValueError, BufferError) as error:
        if not hasattr(owner, "__dlpack__"):
            raise UnusableMemory(f"{type(owner).__name__} has neither the buffer protocol nor DLPack: {error}") from error
        return _dlpack_bytes(owner)
    if not view.c_contiguous:
        raise UnusableMemory(f"buffer has {view.nbytes} bytes, not contiguous")
    return np.frombuffer(view.cast("B"), np.uint8)


def _dlpack_bytes(owner: Any) -> NDArray[np.uint8]:  # noqa: ANN401 - as above
    device = int(owner.__dlpack_device__()[0])
    if device not in _HOST_DEVICES:
        raise UnusableMemory(f"the tensor lies on a device (DLPack type {device}); bring gather and scatter with a ForeignPool")
    try:
        array: NDArray[Any] = np.from_dlpack(owner)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise UnusableMemory(f"{type(owner).__name__} cannot be read through DLPack ({error}); {_AS_BYTES}") from error
    if not array.flags.c_contiguous:
        raise UnusableMemory(f"tensor has {array.nbytes} bytes, not contiguous")
    return _writable(array)


def _writable(array: NDArray[Any]) -> NDArray[np.uint8]:
    """The same bytes, writable; they hold the array, which holds its tensor."""
    if array.flags.writeable:
        return array.reshape(-1).view(np.uint8)
    memory: Any = (ctypes.c_ubyte * array.nbytes).from_address(array.ctypes.data)
    memory.owner = array
    return np.frombuffer(memory, np.uint8)

"""Memory of engines as bytes, by whichever protocol they have."""

import gc
import weakref

import numpy as np
import pytest

from runtime.array_memory import UnusableMemory, bytes_of


class Tensor:
    """A tensor like those of torch: DLPack in its older form, which numpy takes for read-only, and no buffer protocol."""

    def __init__(self, array: "np.ndarray", device: int = 1) -> None:
        self._array = array
        self._device = device

    def __dlpack_device__(self) -> tuple[int, int]:
        """Where the tensor lies."""
        return self._device, 0

    def __dlpack__(self, **_: object) -> object:
        """The older form: no version is negotiated."""
        return self._array.__dlpack__()


@pytest.mark.parametrize(
    "owner",
    [
        pytest.param(bytearray(64), id="buffer"),
        pytest.param(np.zeros(64, np.uint8), id="numpy"),
        pytest.param(Tensor(np.zeros(64, np.uint8)), id="DLPack"),
    ],
)
def test_bytes_are_shared_and_writable(owner: object) -> None:
    """What is written through the bytes is in the engine's object, whichever protocol it has."""
    found = bytes_of(owner)
    found[:] = np.arange(64)
    assert bytes_of(owner).tolist() == list(range(64))


def test_any_number_type_and_shape_gives_its_bytes() -> None:
    """A tensor of half-precision numbers in four dimensions is as many bytes as it has."""
    array = np.zeros((2, 3, 4, 5), np.float16)
    for owner in (array, Tensor(array)):
        bytes_of(owner)[:2] = 255
        assert np.isnan(array[0, 0, 0, 0])
        assert bytes_of(owner).nbytes == array.nbytes


def test_the_bytes_keep_the_tensor_alive() -> None:
    """The memory does not go while somebody still looks at it."""
    array = np.zeros(64, np.uint8)
    gone = weakref.ref(array)
    found = bytes_of(Tensor(array))
    del array
    gc.collect()
    assert gone() is not None
    found[:] = 1
    del found
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("owner", "said"),
    [
        (object(), "object has neither the buffer protocol nor DLPack"),
        (Tensor(np.zeros(8, np.uint8), device=2), "lies on a device.*bring gather and scatter"),
        (np.zeros((4, 4), np.uint8)[:, 0], "not contiguous"),
        (Tensor(np.zeros((4, 4), np.uint8)[:, 0]), "not contiguous"),
        (Tensor(np.zeros(3, "datetime64[s]")), "cannot be read through DLPack.*hand it over as bytes"),
    ],
)
def test_what_cannot_be_used_is_said_with_a_way_out(owner: object, said: str) -> None:
    """The reason and what to do instead."""
    with pytest.raises(UnusableMemory, match=said):
        bytes_of(owner)

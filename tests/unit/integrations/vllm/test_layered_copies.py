"""Gathers that wait for the layers that they read."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from integrations.vllm.cells import CellCache
from integrations.vllm.layered_copies import LayeredCopies
from integrations.vllm.step_gate import StepGate
from protocol.layout import PageRun, expected_writers
from tests.unit.integrations.vllm.cell_orders import plain
from tests.unit.integrations.vllm.shapes import SHAPE


class Noting(StepGate):
    """Writes down who asked for what, and lets the layer appear at that very moment."""

    def __init__(self, layers: Sequence[NDArray[np.uint16]]) -> None:
        super().__init__((), 1)
        self.asked: list[tuple[int, tuple[int, ...]]] = []
        self._layers = layers

    def wait(self, layer: int, pages: Iterable[int]) -> None:
        """Computed just in time."""
        self.asked.append((layer, tuple(pages)))
        self._layers[layer][:] = layer + 1


def test_each_layer_is_read_when_it_is_there() -> None:
    """The pages of the very tokens are waited for, layer after layer, before anything of the layer is read."""
    layers = [np.zeros((6, 2, 2, 4 * 16), np.uint16) for _ in range(2)]
    gate = Noting(layers)
    (writer,) = expected_writers(SHAPE.rank(0, 1), SHAPE.rank(0, 1))
    block = memoryview(bytearray(5 * writer.token_bytes))
    LayeredCopies(CellCache(layers, plain(4, 16)), gate).gather(writer, PageRun((5, 1, 2, 0)), 6, 5, block)
    assert gate.asked == [(0, (1, 2)), (0, (1, 2)), (1, (1, 2)), (1, (1, 2))]
    values = np.frombuffer(block, np.uint16).reshape(2, -1)
    assert (values == np.array([[1], [2]])).all()

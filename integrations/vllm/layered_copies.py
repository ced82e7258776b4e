"""Copies of a prefill rank whose layers may still be in the making."""

from integrations.vllm.cells import CellCache, CellCopies
from integrations.vllm.step_gate import StepGate


class LayeredCopies(CellCopies):
    """Gathers that read a layer as soon as it is there."""

    def __init__(self, cache: CellCache, gate: StepGate) -> None:
        super().__init__(cache)
        self._gate = gate

    def before(self, layer: int, pages: tuple[int, ...]) -> None:
        """Wait until the layer of those pages may be read. Raises ``NotComputedError``."""
        self._gate.wait(layer, pages)

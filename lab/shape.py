"""The shape of a simulated deployment: how many ranks on each side, what each holds, and how large everything is."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from protocol.errors import LayoutError
from protocol.layout import (
    ModelLayout,
    RankLayout,
    chunk_bytes,
    expected_writers,
    layout_differences,
    rank_token_bytes,
    validate_layout,
)


class ShapeError(ValueError):
    """A deployment that cannot exist, with every reason in plain words."""


@dataclass(frozen=True, slots=True)
class PairShape:
    """One prefill daemon and one decode daemon that serve the same model. Raises ``ShapeError`` for one that cannot exist.

    The prefill ranks form ``prefill_groups`` groups of equal size (DP attention): a request is computed by one group, whose
    ranks share it by attention TP. Every request goes to all decode ranks.
    """

    model: ModelLayout
    prefill_ranks: int
    prefill_groups: int
    decode_ranks: int
    plane: str
    chunk_tokens: int
    ring_bytes: int
    """Staging ring of each decode rank; 0 asks for the size that ``with_ring_chunks`` computes."""
    prefill_page_size: int = 16
    decode_page_size: int = 8
    """Smaller than on the prefill side, so that pages never correspond."""

    def __post_init__(self) -> None:
        """Check the counts and every rank's layout against every other's."""
        problems = tuple(self._problems())
        if problems:
            raise ShapeError("; ".join(problems))

    @property
    def group_size(self) -> int:
        """Attention TP within one prefill group."""
        return self.prefill_ranks // self.prefill_groups

    def group_name(self, group: int) -> str:
        """The name by which decode ranks know a prefill group: ``prefill-dpN``, as the prefill daemon makes it."""
        return f"prefill-dp{group}"

    def group_ranks(self, group: int) -> range:
        """The daemon's ranks that form a group."""
        return range(group * self.group_size, (group + 1) * self.group_size)

    def prefill_layout(self, rank: int) -> RankLayout:
        """What a prefill rank holds: its share within its group."""
        return _rank_layout(self.model, rank % self.group_size, self.group_size)

    def decode_layout(self, rank: int) -> RankLayout:
        """What a decode rank holds."""
        return _rank_layout(self.model, rank, self.decode_ranks)

    def chunk_bytes(self, num_tokens: int) -> int:
        """Largest grant that a chunk of ``num_tokens`` tokens needs on any decode rank."""
        return max(self._chunk_bytes(rank, num_tokens) for rank in range(self.decode_ranks))

    def request_bytes(self, num_tokens: int) -> int:
        """KV bytes of a request over all decode ranks: what a check of that request compares."""
        return num_tokens * sum(rank_token_bytes(self.decode_layout(rank)) for rank in range(self.decode_ranks))

    def with_ring_chunks(self, chunks: float) -> "PairShape":
        """The same deployment with rings of that many full chunks, if its ring size was left open."""
        return self if self.ring_bytes else replace(self, ring_bytes=int(self.chunk_bytes(self.chunk_tokens) * chunks))

    def _chunk_bytes(self, rank: int, num_tokens: int) -> int:
        return chunk_bytes(expected_writers(self.prefill_layout(0), self.decode_layout(rank)), num_tokens)

    def _problems(self) -> Iterator[str]:
        if self.prefill_ranks % self.prefill_groups:
            yield f"{self.prefill_ranks} prefill ranks cannot form {self.prefill_groups} groups of equal size"
            return
        prefill, decode = self.prefill_layout(0), self.decode_layout(0)
        layout_problems = [
            f"{side}: {problem}"
            for side, layout in (("prefill", prefill), ("decode", decode))
            for problem in _layout_problems(layout)
        ]
        yield from layout_problems
        if layout_problems:
            return
        differences = layout_differences(prefill, decode)
        yield from (f"{row.field}: prefill has {row.prefill}, decode has {row.decode}" for row in differences)
        if not differences and self.ring_bytes and self.ring_bytes < (needed := self.chunk_bytes(self.chunk_tokens)):
            yield f"a ring of {self.ring_bytes} bytes is smaller than one chunk of {self.chunk_tokens} tokens ({needed} bytes)"


def _rank_layout(model: ModelLayout, tp_rank: int, tp_size: int) -> RankLayout:
    return RankLayout(model, tp_rank, tp_size, pp_rank=0, pp_size=1, stage_bounds=(0, len(model.layers)))


def _layout_problems(layout: RankLayout) -> tuple[str, ...]:
    try:
        validate_layout(layout)
    except LayoutError as error:
        return error.problems
    return ()

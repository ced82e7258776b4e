"""What one prefill rank owes one decode rank of each token, and where its slice lies within a grant.

A grant is writer-major, so with the bytes per token of the writers before us, of us, and of all together, every grant of any
number of tokens can be checked before a byte is written into it.
"""

from dataclasses import dataclass

from protocol.layout import RankLayout, WriterKey, expected_writers
from protocol.messages import GrantSlice


@dataclass(frozen=True, slots=True)
class WriterShare:
    """Bytes of one token: of the writers before this one, of this one, and of all writers. ``token_bytes`` 0 owes nothing."""

    before_bytes: int
    token_bytes: int
    total_bytes: int

    @classmethod
    def between(cls, prefill: RankLayout, decode: RankLayout) -> "WriterShare":
        """Work the share out once per session. Raises ``LayoutError`` if the layouts cannot be matched."""
        writers = expected_writers(prefill, decode)
        own = WriterKey(prefill.tp_rank, prefill.pp_rank)
        order = [writer.writer for writer in writers]
        place = order.index(own) if own in order else len(order)
        sizes = [writer.token_bytes for writer in writers]
        return cls(sum(sizes[:place]), sum(sizes[place : place + 1]), sum(sizes))

    @property
    def is_alone(self) -> bool:
        """Whether nobody else writes anything of a token."""
        return self.token_bytes == self.total_bytes

    def problem(self, grant: GrantSlice, num_tokens: int, ring_size: int) -> str | None:
        """What is wrong with a grant for ``num_tokens`` tokens, or ``None``."""
        expected = {
            "writer_offset": (grant.writer_offset, self.before_bytes * num_tokens),
            "writer_bytes": (grant.writer_bytes, self.token_bytes * num_tokens),
            "end": (grant.end, grant.offset + self.total_bytes * num_tokens),
        }
        for name, (got, right) in expected.items():
            if got != right:
                return f"{name} is {got}, expected {right} for {num_tokens} tokens"
        if grant.end > ring_size:
            return f"end is {grant.end}, expected at most the ring's {ring_size} bytes"
        return None

"""Hypothesis strategies for every message of the protocol, up to the bounds of ``protocol/limits.py``."""

from hypothesis import strategies as st

from protocol import limits
from protocol.layout import LayoutDifference, ModelLayout, RankLayout, TensorSpec
from protocol.messages import (
    Abort,
    AbortAck,
    Blocked,
    ChunkDone,
    ChunkReady,
    DataPiece,
    DoneStatus,
    Error,
    ErrorCode,
    Goodbye,
    GrantSlice,
    GrantStatus,
    Heartbeat,
    HeartbeatAck,
    Refused,
    RefusedCode,
    StagingReq,
    StagingRsp,
    Subscribe,
    Subscribed,
    ToDecode,
    ToPrefill,
    Unsubscribe,
    WatermarkUpdate,
    WriteFailed,
)
from protocol.watermark import Watermark

_UNICODE = st.characters(codec="utf-8")
_PRINTABLE = st.characters(min_codepoint=0x20, max_codepoint=0x7E)

ids = st.text(_PRINTABLE, min_size=1, max_size=limits.MAX_ID_BYTES)
names = st.from_regex(r"[A-Za-z0-9_:-][A-Za-z0-9._:-]{0,127}", fullmatch=True)
uint63 = st.integers(0, limits.MAX_UINT63)
uint64 = st.integers(0, limits.MAX_UINT64)
sizes = st.integers(1, limits.MAX_UINT63)
attempts = st.integers(0, limits.MAX_ATTEMPT)
chunks = st.integers(0, limits.MAX_ROOM_TOKENS)
ranks = st.integers(0, limits.MAX_RANKS - 1)
rank_counts = st.integers(1, limits.MAX_RANKS)
versions = st.integers(1, limits.MAX_VERSION)
texts = st.text(_UNICODE, max_size=limits.MAX_TEXT_BYTES // 4)
words = st.text(_PRINTABLE, max_size=limits.MAX_ID_BYTES)
name_lists = st.lists(ids, max_size=4).map(tuple)
watermarks = st.builds(Watermark, uint63, uint63)
durations = st.floats(0, limits.MAX_DURATION_S)
positive_durations = st.floats(0, limits.MAX_DURATION_S, exclude_min=True)

tensors = st.builds(
    TensorSpec,
    st.text(_PRINTABLE, min_size=1, max_size=limits.MAX_TENSOR_NAME_BYTES),
    st.integers(1, limits.MAX_HEADS),
    st.integers(1, limits.MAX_HEAD_BYTES),
    st.text(_PRINTABLE, min_size=1, max_size=limits.MAX_DTYPE_BYTES),
    st.booleans(),
)
_layers = st.lists(tensors, max_size=3).map(tuple)
_layer_runs = st.lists(st.tuples(st.integers(1, 40), _layers), min_size=1, max_size=4)
models = _layer_runs.map(lambda runs: ModelLayout(tuple(layer for count, layer in runs for _ in range(count))))
layouts = st.builds(
    RankLayout,
    models,
    ranks,
    rank_counts,
    ranks,
    rank_counts,
    st.lists(st.integers(0, limits.MAX_LAYERS), max_size=8).map(tuple),
)
descriptors = st.dictionaries(ids, uint64 | st.text(_UNICODE, max_size=40) | st.binary(max_size=40), max_size=6)


@st.composite
def grants(draw: st.DrawFn) -> GrantSlice:
    """A grant whose slice lies within it."""
    offset = draw(st.integers(0, limits.MAX_UINT63 - 1))
    end = draw(st.integers(offset + 1, limits.MAX_UINT63))
    writer_offset = draw(st.integers(0, end - offset - 1))
    writer_bytes = draw(st.integers(1, end - offset - writer_offset))
    return GrantSlice(draw(uint63), offset, draw(uint63), end, writer_offset, writer_bytes)


_differences = st.builds(LayoutDifference, *[texts.filter(lambda text: len(text.encode()) <= 256)] * 3)
_traceparents = st.none() | ids
_ungranted = st.sampled_from([status for status in GrantStatus if status is not GrantStatus.GRANTED])

subscribes = st.builds(
    Subscribe,
    attempts,
    st.tuples(versions, versions).map(lambda pair: (min(pair), max(pair))),
    name_lists,
    ids,
    ids,
    uint63,
    st.none() | ranks,
    st.integers(1, limits.MAX_CHUNK_TOKENS),
    layouts,
    name_lists,
    ids,
    st.none() | names,
)
subscribed_answers = st.builds(
    Subscribed,
    attempts,
    uint63,
    versions,
    name_lists,
    names,
    names,
    uint63,
    ranks,
    uint64,
    sizes,
    ids,
    descriptors,
    positive_durations,
    positive_durations,
    layouts,
)
staging_requests = st.builds(StagingReq, names, ids, chunks, chunks, st.integers(1, limits.MAX_CHUNK_TOKENS), _traceparents)
aborts = st.builds(Abort, names, ids, uint63, texts)
abort_acks = st.builds(AbortAck, names, ids, uint63)
blocked = st.builds(Blocked, ids, chunks, uint63, sizes, durations)

to_decode: st.SearchStrategy[ToDecode] = st.one_of(
    subscribes,
    staging_requests,
    st.builds(ChunkReady, names, ids, chunks, uint63, attempts, sizes, st.none() | uint64, _traceparents),
    st.builds(WriteFailed, names, ids, chunks, uint63, attempts, texts),
    aborts,
    abort_acks,
    st.builds(Heartbeat, names, uint63, watermarks, st.none() | blocked),
    st.builds(Unsubscribe, names, texts),
)
to_prefill: st.SearchStrategy[ToPrefill] = st.one_of(
    subscribed_answers,
    st.builds(Refused, attempts, st.sampled_from(RefusedCode), texts, st.lists(_differences, max_size=4).map(tuple)),
    st.builds(WatermarkUpdate, uint63, uint63, names),
    st.builds(StagingRsp, names, ids, chunks, _ungranted, watermarks, st.none(), texts),
    st.builds(StagingRsp, names, ids, chunks, st.just(GrantStatus.GRANTED), watermarks, grants(), texts),
    st.builds(ChunkDone, names, ids, chunks, uint63, attempts, st.sampled_from(DoneStatus), words),
    aborts,
    abort_acks,
    st.builds(HeartbeatAck, names, uint63),
    st.builds(Goodbye, names, texts),
    st.builds(Error, names, st.sampled_from(ErrorCode), texts, words),
)
data_pieces = st.builds(DataPiece, names, ids, chunks, uint63, attempts, uint63, st.integers(1, limits.MAX_DATA_PIECE_BYTES))

"""Both halves inside one engine process, over KV tensors that the engine owns: numpy, torch on the CPU, and a device.

Run it from a checkout or with the package installed::

    python examples/embedded_pair.py [--plane shm|zmq] [--base-port 7600]

Two prefill ranks (TP 2) send one request to four decode ranks (TP 4). It does so once for each kind of memory and compares what
arrived with what was sent. ``docs/embedding.md`` goes through it step by step.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from decode_service.config import DecodeServiceConfig
from decode_service.server import DecodeStagingServer
from prefill_service.client import PrefillStagingClient
from prefill_service.config import PrefillServiceConfig
from protocol.layout import ModelLayout, PageRun, RankLayout, TensorSpec, WriterSlice, part_offsets
from runtime.foreign_pool import ForeignPool
from runtime.logs import configure_logs
from runtime.pool import KvPool
from runtime.pool_layout import PoolLayout, PoolTensor

# ---- the model, and what each rank of it holds ---------------------------------------------------------------------------

LAYERS, HEADS, HEAD_DIM, ITEM = 2, 8, 16, 2
WIDTH = HEAD_DIM * ITEM
MODEL = ModelLayout(((TensorSpec("k", HEADS, WIDTH, "float16"), TensorSpec("v", HEADS, WIDTH, "float16")),) * LAYERS)
PREFILL_TP, DECODE_TP = 2, 4
CHUNK_TOKENS = 32
NUM_PAGES = 16
PROMPT_TOKENS = 70
TIMEOUT_S = 30.0


def rank_layout(tp_rank: int, tp_size: int) -> RankLayout:
    """One rank, without pipeline stages."""
    return RankLayout(MODEL, tp_rank, tp_size, pp_rank=0, pp_size=1, stage_bounds=(0, LAYERS))


def tensor_shape(tp_size: int, page_size: int) -> tuple[int, ...]:
    """This engine keeps a rank's whole cache in one tensor: ``[layer, k or v, page, token, head, dim]``."""
    return LAYERS, 2, NUM_PAGES, page_size, HEADS // tp_size, HEAD_DIM


def pool_layout(tp_rank: int, tp_size: int, page_size: int) -> PoolLayout:
    """Where the bytes of that tensor are: one entry for each tensor of each layer, in bytes. Any other axis order will do."""
    heads = HEADS // tp_size
    token = heads * WIDTH
    page = page_size * token
    tensors = [
        PoolTensor(layer, index, (2 * layer + index) * NUM_PAGES * page, page, token, WIDTH)
        for layer in range(LAYERS)
        for index in range(2)
    ]
    return PoolLayout(rank_layout(tp_rank, tp_size), page_size, NUM_PAGES, tuple(tensors), LAYERS * 2 * NUM_PAGES * page)


# ---- three kinds of memory -----------------------------------------------------------------------------------------------


class Cache(Protocol):
    """One rank's cache in some kind of memory."""

    pool: KvPool
    """What the services get."""

    def numbers(self) -> NDArray[np.float16]:
        """The cache as the engine sees it, in the shape of ``tensor_shape``. Writing to it counts on the prefill side."""

    def written(self) -> None:
        """What was written to ``numbers`` shall count."""


class NumpyCache:
    """A numpy array: it has the buffer protocol, so the pool lies over it as it is."""

    def __init__(self, tp_rank: int, tp_size: int, page_size: int) -> None:
        self._array = np.zeros(tensor_shape(tp_size, page_size), np.float16)
        self.pool = KvPool.over(self._array, pool_layout(tp_rank, tp_size, page_size))

    def numbers(self) -> NDArray[np.float16]:
        """The array itself."""
        return self._array

    def written(self) -> None:
        """It counts already."""


class TorchCache:
    """A torch tensor on the CPU: its bytes go over by DLPack, which works for every dtype if it is viewed as ``uint8``."""

    def __init__(self, tp_rank: int, tp_size: int, page_size: int) -> None:
        import torch  # noqa: PLC0415 - the example works without it

        self._tensor = torch.zeros(tensor_shape(tp_size, page_size), dtype=torch.float16)
        self.pool = KvPool.over(self._tensor.view(torch.uint8), pool_layout(tp_rank, tp_size, page_size))

    def numbers(self) -> NDArray[np.float16]:
        """The same memory as an array."""
        array: NDArray[np.float16] = self._tensor.numpy()
        return array

    def written(self) -> None:
        """It counts already."""


class DeviceCache:
    """Memory that the host cannot address, as on a GPU: the engine brings gather and scatter.

    The device of this example is an array that only ``_download`` and ``_upload`` touch. With torch they would be
    ``tensor[...].to("cpu")`` and ``tensor[...].copy_(...)``, followed by a wait for the stream.
    """

    def __init__(self, tp_rank: int, tp_size: int, page_size: int) -> None:
        self._device = np.zeros(tensor_shape(tp_size, page_size), np.float16)
        self._host = np.zeros_like(self._device)
        self._page_size = page_size
        rank = rank_layout(tp_rank, tp_size)
        self.pool: KvPool = ForeignPool(rank, page_size, NUM_PAGES, gather=self._gather, scatter=self._scatter)

    def numbers(self) -> NDArray[np.float16]:
        """A copy on the host."""
        np.copyto(self._host, self._device)
        return self._host

    def written(self) -> None:
        """Bring the host's copy to the device."""
        np.copyto(self._device, self._host)

    def _download(self, layer: int, index: int, places: tuple[Any, ...]) -> NDArray[np.float16]:
        copied: NDArray[np.float16] = self._device[layer, index][places].copy()
        return copied

    def _upload(self, layer: int, index: int, places: tuple[Any, ...], values: NDArray[np.float16]) -> None:
        self._device[layer, index][places] = values

    def _gather(self, writer: WriterSlice, run: PageRun, token_start: int, num_tokens: int, block: memoryview) -> None:
        """Pages to the staged block: the parts of the slice one after the other, each ``[tokens, heads, dim]``."""
        for part, offset in zip(writer.parts, part_offsets(writer.parts, num_tokens), strict=True):
            heads = slice(part.source_head, part.source_head + part.head_count)
            values = self._download(part.layer, part.tensor, (*self._places(run, token_start, num_tokens), heads))
            block[offset : offset + num_tokens * part.row_bytes] = values.view(np.uint8).reshape(-1).data

    def _scatter(self, writer: WriterSlice, run: PageRun, token_start: int, num_tokens: int, block: memoryview) -> None:
        """The staged block to pages."""
        for part, offset in zip(writer.parts, part_offsets(writer.parts, num_tokens), strict=True):
            heads = slice(part.destination_head, part.destination_head + part.head_count)
            staged = np.frombuffer(block[offset : offset + num_tokens * part.row_bytes], np.float16)
            values = staged.reshape(num_tokens, part.head_count, HEAD_DIM)
            self._upload(part.layer, part.tensor, (*self._places(run, token_start, num_tokens), heads), values)

    def _places(self, run: PageRun, token_start: int, num_tokens: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Page and place within the page of each token."""
        at = np.arange(run.first_token + token_start, run.first_token + token_start + num_tokens)
        return np.array(run.pages, np.intp)[at // self._page_size], at % self._page_size


# ---- one request, from prefill pages to decode pages -----------------------------------------------------------------------


def carry(make: Callable[[int, int, int], Cache], plane: str, base_port: int, folder: Path) -> None:
    """Start both halves, move one request, compare, and stop. Raises if anything is not as it must be."""
    prefill = [make(rank, PREFILL_TP, 16) for rank in range(PREFILL_TP)]
    decode = [make(rank, DECODE_TP, 8) for rank in range(DECODE_TP)]
    common: dict[str, Any] = {"chunk_tokens": CHUNK_TOKENS, "planes": (plane,), "runtime_dir": folder, "http_port": 0}
    ports: dict[str, Any] = {"base_port": base_port, "data_base_port": base_port + DECODE_TP}
    with ExitStack() as stack:
        server = stack.enter_context(
            DecodeStagingServer(DecodeServiceConfig(ranks=tuple(range(DECODE_TP)), ring_bytes=1 << 20, **ports, **common))
        )
        client = stack.enter_context(PrefillStagingClient(PrefillServiceConfig(ranks=tuple(range(PREFILL_TP)), **common)))
        calls = [server.engine.attach_pool(rank, cache.pool) for rank, cache in enumerate(decode)]
        calls += [client.engine.attach_pool(rank, cache.pool) for rank, cache in enumerate(prefill)]

        # The decode engine lends pages and expects the request; the pages are the daemon's until wait_room answers.
        destination = PageRun((4, 9, 2, 11, 0, 7, 8, 13, 5))
        calls += [
            server.engine.register_room("request-1", rank, "prefill", PROMPT_TOKENS, destination) for rank in range(DECODE_TP)
        ]

        # The prefill engine computes chunk by chunk, and hands each over as soon as it is in its pages.
        endpoints = [server.endpoints[f"control_{rank}"] for rank in range(DECODE_TP)]
        source = PageRun((3, 12, 6, 1, 15), first_token=5)
        for start in range(0, PROMPT_TOKENS, CHUNK_TOKENS):
            count = min(CHUNK_TOKENS, PROMPT_TOKENS - start)
            compute_chunk(prefill, source, start, count)
            calls += [
                client.engine.submit_chunk("request-1", rank, endpoints, start, count, source) for rank in range(PREFILL_TP)
            ]
        calls += [client.engine.finish_room("request-1", rank) for rank in range(PREFILL_TP)]
        for call in calls:
            call.result(TIMEOUT_S)

        # Both sides hear how it ended; from then on the pages are theirs again.
        ends = [server.engine.wait_room("request-1", rank) for rank in range(DECODE_TP)]
        ends += [client.engine.wait_room("request-1", rank) for rank in range(PREFILL_TP)]
        for end in ends:
            outcome = end.result(TIMEOUT_S)
            if not outcome.done:
                raise RuntimeError(f"rank {outcome.rank}: {outcome.code}: {outcome.message}")
        compare(decode, destination)


def right_values(start: int, count: int) -> NDArray[np.float16]:
    """What the model computes for these tokens: ``[layer, k or v, token, head, dim]`` over all heads."""
    shape = (LAYERS, 2, PROMPT_TOKENS, HEADS, HEAD_DIM)
    every = np.random.default_rng(1).integers(-1000, 1000, shape).astype(np.float16)
    return every[:, :, start : start + count]


def places_of(run: PageRun, page_size: int, start: int, count: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Page and place within the page of each token."""
    at = np.arange(run.first_token + start, run.first_token + start + count)
    return np.array(run.pages, np.intp)[at // page_size], at % page_size


def compute_chunk(caches: Sequence[Cache], source: PageRun, start: int, count: int) -> None:
    """Stand in for a forward pass: every rank puts its heads of these tokens into its pages."""
    values, share = right_values(start, count), HEADS // len(caches)
    for rank, cache in enumerate(caches):
        pages, slots = places_of(source, 16, start, count)
        cache.numbers()[:, :, pages, slots] = values[:, :, :, rank * share : (rank + 1) * share]
        cache.written()


def compare(caches: Sequence[Cache], destination: PageRun) -> None:
    """Raise unless every decode rank holds its heads of every token."""
    values, share = right_values(0, PROMPT_TOKENS), HEADS // len(caches)
    for rank, cache in enumerate(caches):
        pages, slots = places_of(destination, 8, 0, PROMPT_TOKENS)
        if not np.array_equal(cache.numbers()[:, :, pages, slots], values[:, :, :, rank * share : (rank + 1) * share]):
            raise RuntimeError(f"decode rank {rank} holds other numbers than were computed")


def main() -> None:
    """Move the request once for each kind of memory that there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plane", choices=["shm", "zmq"], default="shm", help="data plane")
    parser.add_argument("--base-port", type=int, default=7600, help="first of eight ports")
    options = parser.parse_args()
    kinds: dict[str, Callable[[int, int, int], Cache]] = {"numpy": NumpyCache, "torch": TorchCache, "device": DeviceCache}
    # Services log with structlog; an engine that has configured it already leaves this line out.
    configure_logs("error")
    for name, make in kinds.items():
        with tempfile.TemporaryDirectory() as folder:
            try:
                carry(make, options.plane, options.base_port, Path(folder))
            except ModuleNotFoundError as error:
                if error.name != "torch":
                    raise
                print(f"{name}: left out, torch is not installed")
                continue
        print(f"{name}: {PROMPT_TOKENS} tokens arrived on {DECODE_TP} decode ranks, every number right ({options.plane})")


if __name__ == "__main__":
    main()

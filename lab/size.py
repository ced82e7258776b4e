"""``lab size``: chunk and ring size for a model and a deployment."""

import sys
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from lab.kv_config import DTYPE_BYTES, ModelConfigError, ModelKv, read_model_config
from lab.presets import PRESETS
from lab.report import print_json
from lab.shape import ShapeError
from lab.sizing import SizeAnswer, SizeQuestion, answer
from runtime.setting_kinds import SIZE, render_size

_DTYPES = ["auto", *DTYPE_BYTES]


@click.command()
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="The model's config.json, or its directory.")
@click.option("--preset", type=click.Choice(list(PRESETS)), help="A known model instead.")
@click.option("--kv-dtype", type=click.Choice(_DTYPES), default="auto", help="Type of the KV cache; auto is the model's.")
@click.option("--prefill-tp", type=click.IntRange(1, 4096), default=1, help="Attention TP of one prefill instance.")
@click.option("--decode-tp", type=click.IntRange(1, 4096), default=1, help="Decode ranks.")
@click.option("--chunk-tokens", type=click.IntRange(1, 1 << 24), help="Tokens of a chunk.  [default: about 16 MiB of them]")
@click.option("--scatter-ms", type=click.FloatRange(min=0), default=0.0, help="How long a full chunk takes to be scattered.")
@click.option("--gigabytes-per-s", type=click.FloatRange(min=0), default=0.0, help="What one decode rank receives.")
@click.option("--concurrency", type=click.IntRange(1, 65_536), default=4, help="Chunks on their way into a rank at once.")
@click.option("--ring-bytes", help="A ring to be judged, for example 256MiB.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def size(
    *,
    config: Path | None,
    preset: str | None,
    kv_dtype: str,
    prefill_tp: int,
    decode_tp: int,
    chunk_tokens: int | None,
    scatter_ms: float,
    gigabytes_per_s: float,
    concurrency: int,
    ring_bytes: str | None,
    as_json: bool,
) -> None:
    """Say how large chunks and staging rings should be, and what smaller ones do."""
    model = _model(config, preset, kv_dtype)
    times = (scatter_ms / 1e3, gigabytes_per_s * 1e9)
    ring = _ring(ring_bytes)
    question = SizeQuestion(model.layout, prefill_tp, decode_tp, concurrency, chunk_tokens or 0, *times, ring)
    try:
        found = answer(question)
    except ShapeError as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        print_json({"model": model.name, "notes": list(model.notes), **found.to_json()})
    else:
        print_size(model, found, Console())
    sys.exit(0 if found.is_enough else 1)


def print_size(model: ModelKv, found: SizeAnswer, console: Console) -> None:
    """The answer as a table, the settings to copy, and what smaller rings do."""
    table = Table(title=f"{model.name}, on each decode rank", show_header=False)
    rows = {
        "KV of one token": f"{found.token_bytes} B from {found.writers} prefill ranks",
        "chunk": f"{found.chunk_tokens} tokens, {render(found.chunk_bytes)}",
        "smallest ring": render(found.minimum_ring_bytes),
        "recommended ring": f"{render(found.ring_bytes)} ({found.ring_chunks} chunks on their way and one more)",
        "all decode ranks": render(found.total_ring_bytes),
    }
    if found.bytes_per_s:
        rows["lets through"] = f"up to {found.bytes_per_s / 1e9:.2f} GB/s"
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table)
    console.print(f"decode-service serve --ring-bytes {render_size(found.ring_bytes)} --chunk-tokens {found.chunk_tokens}")
    console.print(f"prefill-service serve --chunk-tokens {found.chunk_tokens}\n")
    for tier in found.tiers:
        console.print(f"from {render(tier.from_bytes)}: {tier.effect}")
    for note in model.notes:
        console.print(f"note: {note}")
    if found.verdict:
        console.print(f"\na ring of {render(found.given_ring_bytes)}: {found.verdict}")


def render(num_bytes: int) -> str:
    """Bytes for people: in MiB from one MiB on."""
    return f"{num_bytes / (1 << 20):.1f} MiB" if num_bytes >= 1 << 20 else f"{num_bytes} B"


def _model(config: Path | None, preset: str | None, kv_dtype: str) -> ModelKv:
    if (config is None) == (preset is None):
        raise click.UsageError("expected --config or --preset, and one of them only")
    if preset is not None:
        if kv_dtype != "auto":
            raise click.UsageError("--kv-dtype: expected only with --config; a preset has its own")
        return ModelKv(preset, PRESETS[preset].model)
    assert config is not None
    try:
        return read_model_config(config, kv_dtype)
    except (ModelConfigError, OSError) as error:
        raise click.UsageError(str(error)) from error


def _ring(text: str | None) -> int:
    if text is None:
        return 0
    try:
        found = SIZE.parse(text)
    except ValueError:
        found = 0
    if found < 1:
        raise click.UsageError(f"--ring-bytes: expected {SIZE.expected}")
    return found

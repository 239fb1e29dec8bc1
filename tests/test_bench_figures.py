"""The page of the GPU's figures is what its rows say."""

from __future__ import annotations

from math import prod
from pathlib import Path

from bench import figures, synthetic

from minfer.dtypes import BY_NAME

PAGE = Path(__file__).parent.parent / "docs" / "gpu_figures.md"


def test_the_page_is_fresh() -> None:
    assert PAGE.read_text() == figures.page(), "run python -m bench.figures > docs/gpu_figures.md"


def test_the_newest_row_of_a_work_counts() -> None:
    row = {"model": "m", "test": "pp512", "switches": "", "error": ""}
    old, new = row | {"tokens_per_second": "1"}, row | {"tokens_per_second": "2"}
    failed = row | {"tokens_per_second": "", "error": "it broke"}
    assert figures.speeds([old, new, failed]) == {("m", "pp512", ""): new}


def test_what_the_device_holds_is_beside_what_is_allowed() -> None:
    both = {"model": "m", "n_ctx": "8448", "switches": ""}
    load = both | {"test": "load", "load_seconds": "1.25"}
    held = {"device_bytes": "3100000000", "kv_bytes": "1000000000", "file_bytes": "2000000000"}
    switched = both | {"test": "memory", "switches": "MINFER_CUDA_HALVES=1"} | held
    line = ("m", "8,448", "1.25 s", "2,000", "1,000", "3,100", "3,700")
    assert list(figures.memory([load, both | {"test": "memory"} | held, switched])) == [line]


def test_starts_are_a_section_where_there_are_any() -> None:
    seconds = {f"{part}_seconds": "2" for part in ("start", "driver", "load", "tokens")}
    row = {"model": "m", "kernels_compiled": "31", **seconds}
    rows = [row | {"start": "first"}, row | {"start": "later", "kernels_compiled": "0"}]
    text = "\n".join(figures.started(rows))
    assert "| m | first | 31 | 2.00 |" in text
    assert "| m | later | 0 | 2.00 |" in text
    assert list(figures.started([])) == []


def test_the_floor_of_decoding_is_of_what_a_step_reads() -> None:
    shape = synthetic.MODELS["qwen2-7b-q4_k_m"]
    file = sum(dtype.nbytes(prod(dims)) for _, dtype, dims in synthetic.tensors(shape))
    table = BY_NAME[shape.embedding].nbytes(shape.width * shape.n_vocab)
    assert figures.bytes_a_token("qwen2-7b-q4_k_m") == file - table  # a row of it is nothing
    tied = sum(
        dtype.nbytes(prod(dims))
        for _, dtype, dims in synthetic.tensors(synthetic.MODELS["gemma3-4b-q4_k_m"])
    )
    assert figures.bytes_a_token("gemma3-4b-q4_k_m") == tied

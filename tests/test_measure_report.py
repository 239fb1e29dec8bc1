"""Rows of a benchmark stand beside llama-bench's: names, order, columns and figures."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from minfer.measure import (
    FIELDS,
    Case,
    Facts,
    Result,
    Setup,
    csv_rows,
    every_case,
    every_setup,
    json_rows,
    jsonl_rows,
    markdown,
    record,
    sql_rows,
)

FACTS = Facts("m.gguf", "qwen2 7B Q4_K - Medium", 4680000000, 7620000000, "CPU", 4, "cpu", "", 28)
ROW = Result(
    Setup("m.gguf"),
    Case(512, 0),
    FACTS,
    datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    [1_000_000_000, 2_000_000_000],
)
LLAMA_BENCH = (
    "build_commit,build_number,cpu_info,gpu_info,backends,model_filename,model_type,model_size,"
    "model_n_params,n_batch,n_ubatch,n_threads,cpu_mask,cpu_strict,poll,type_k,type_v,n_gpu_layers,"
    "n_cpu_moe,split_mode,main_gpu,no_kv_offload,flash_attn,devices,tensor_split,"
    "tensor_buft_overrides,use_mmap,use_direct_io,embeddings,no_op_offload,no_host,repack,"
    "fit_target,fit_min_ctx,n_prompt,n_gen,n_depth,test_time,avg_ns,stddev_ns,avg_ts,stddev_ts"
)
"""The header of its CSV."""


def test_fields_are_llama_benchs_in_its_order() -> None:
    assert ",".join(FIELDS) == LLAMA_BENCH
    assert list(record(ROW)) == FIELDS


def test_figures() -> None:
    row = record(ROW)
    assert (row["avg_ns"], row["stddev_ns"]) == (1_500_000_000, 707106781)
    assert (row["avg_ts"], round(row["stddev_ts"], 3)) == (384.0, 181.019)
    assert row["test_time"] == "2026-01-02T03:04:05Z"
    assert record(replace(ROW, samples_ns=[5]))["stddev_ns"] == 0
    with_floor = record(replace(ROW, floor_seconds=0.5, bound="memory"))
    assert list(with_floor)[: len(FIELDS)] == FIELDS
    assert with_floor["floor_ts"] == 1024
    assert with_floor["floor_share"] == 0.375


def cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6f}"
    return str(int(value)) if isinstance(value, bool) else str(value)


def test_sql_fills_a_database() -> None:
    rows = [replace(ROW, setup=Setup("it's.gguf"), floor_seconds=0.5), replace(ROW, samples_ns=[7])]
    text = "".join(sql_rows([rows[1]]))
    assert text.startswith("CREATE TABLE IF NOT EXISTS llama_bench (\n  build_commit TEXT,\n")
    assert "\n  cpu_strict INTEGER,\n" in text and "\n  stddev_ts REAL\n);\n\nINSERT" in text
    assert text.endswith("', '0.000000');\n")
    database = sqlite3.connect(":memory:")
    database.executescript("".join(sql_rows(rows[:1])))
    database.executescript("".join(sql_rows(rows[:1])))
    found = database.execute("SELECT * FROM llama_bench").fetchall()
    assert found[0] == found[1]
    for value, expected in zip(found[0], record(rows[0]).values(), strict=True):
        assert value == (pytest.approx(expected) if isinstance(expected, float) else expected)
        assert type(value) is (int if isinstance(expected, bool) else type(expected))
    database.close()


def test_csv_and_json_say_the_same() -> None:
    rows = [ROW, replace(ROW, test=Case(0, 128, 64))]
    lines = list(csv.DictReader(io.StringIO("".join(csv_rows(rows)))))
    objects = json.loads("".join(json_rows(rows)))
    assert [json.loads(line) for line in jsonl_rows(rows)] == objects
    assert len(lines) == len(objects) == 2
    for line, item in zip(lines, objects, strict=True):
        assert item.pop("samples_ns") == [1_000_000_000, 2_000_000_000]
        assert len(item.pop("samples_ts")) == 2
        assert line == {k: cell(v) for k, v in item.items()}


def test_json_of_an_interrupted_run_is_closed() -> None:
    def interrupted() -> Iterator[Result]:
        yield ROW
        raise KeyboardInterrupt

    text = ""
    with pytest.raises(KeyboardInterrupt):
        for part in json_rows(interrupted()):
            text += part
    assert len(json.loads(text)) == 1
    left_early = json_rows([ROW, ROW])
    assert next(left_early)
    left_early.close()  # nobody is told of an end
    assert json.loads("".join(json_rows([]))) == []


def test_the_table_is_llama_benchs() -> None:
    lines = "".join(markdown([ROW], [ROW.setup], floor=False)).splitlines()
    assert lines[:3] == [
        "| model                          |       size |     params | backend    | threads |"
        "            test |                  t/s |",
        "| ------------------------------ | ---------: | ---------: | ---------- | ------: |"
        " --------------: | -------------------: |",
        "| qwen2 7B Q4_K - Medium         |   4.36 GiB |     7.62 B | CPU        |       4 |"
        "           pp512 |      384.00 ± 181.02 |",
    ]
    assert lines[-1].startswith("build: minfer ")


def test_columns_appear_where_rows_differ() -> None:
    both = [Setup("m", type_k="f16", type_v="f16"), Setup("m", type_k="q8_0", type_v="q8_0")]
    with_floor = replace(ROW, floor_seconds=0.5, bound="memory")
    head = "".join(markdown([with_floor], both, floor=True)).splitlines()[0]
    assert [c.strip() for c in head.split("|")[5:-1]] == [
        *("threads", "type_k", "type_v", "test", "t/s", "floor t/s", "of floor", "bound by")
    ]
    gpu = replace(ROW, facts=replace(FACTS, backends="CUDA", gpu_info="a GPU"))
    lines = "".join(markdown([gpu], [gpu.setup], floor=False)).splitlines()
    assert [c.strip() for c in lines[0].split("|")[4:6]] == ["backend", "ngl"]
    assert lines[2].split("|")[5].strip() == "29"


def test_every_combination_in_llama_benchs_order() -> None:
    found = every_case([512, 0], [128], [(64, 8)], [0, 32])
    assert [t.name for t in found] == [
        *("pp512", "tg128", "pp64+tg8", "pp512 @ d32", "tg128 @ d32", "pp64+tg8 @ d32")
    ]
    made = list(every_setup(["a", "b"], [None], [("f16", "f16")], [1, 2], [2048], [256, 512]))
    assert [(s.model, s.n_ubatch, s.n_threads) for s in made[:4]] == [
        *(("a", 256, 1), ("a", 256, 2), ("a", 512, 1), ("a", 512, 2))
    ]
    assert len(made) == 8

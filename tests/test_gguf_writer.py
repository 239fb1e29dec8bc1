"""What `write_gguf` writes, `open_gguf` and the `gguf` package read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minfer.dtypes import BY_NAME, TYPES
from minfer.errors import FormatError
from minfer.gguf import TensorData, Typed, ValueType, open_gguf, u32, write_gguf

F32 = BY_NAME["f32"]
IN_ONE_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)

INT_RANGES = {
    ValueType.U8: (0, 2**8 - 1),
    ValueType.I8: (-(2**7), 2**7 - 1),
    ValueType.U16: (0, 2**16 - 1),
    ValueType.I16: (-(2**15), 2**15 - 1),
    ValueType.U32: (0, 2**32 - 1),
    ValueType.I32: (-(2**31), 2**31 - 1),
    ValueType.U64: (0, 2**64 - 1),
    ValueType.I64: (-(2**63), 2**63 - 1),
}


def scalars(kind: ValueType) -> st.SearchStrategy[Any]:
    if kind in INT_RANGES:
        return st.integers(*INT_RANGES[kind])
    if kind is ValueType.BOOL:
        return st.booleans()
    if kind is ValueType.STRING:
        return st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    return st.floats(width=32 if kind is ValueType.F32 else 64)


PLAIN = [kind for kind in ValueType if kind is not ValueType.ARRAY]
scalar_values = st.sampled_from(PLAIN).flatmap(
    lambda kind: scalars(kind).map(lambda value: Typed(kind, value))
)
array_values = st.sampled_from(PLAIN).flatmap(
    lambda kind: st.lists(scalars(kind), max_size=9).map(lambda v: Typed.array(kind, v))
)
nested_values = st.lists(array_values, max_size=3).map(lambda v: Typed.array(ValueType.ARRAY, v))
keys = st.text(st.characters(codec="ascii", categories=["Ll", "Nd"]), min_size=1, max_size=30)
metadata_values = st.dictionaries(keys, scalar_values | array_values | nested_values, max_size=8)


@st.composite
def tensor_lists(draw: st.DrawFn) -> list[TensorData]:
    tensors = []
    for name in draw(st.lists(keys, unique=True, max_size=6)):
        dtype = draw(st.sampled_from(TYPES))
        rest = draw(st.lists(st.integers(1, 3), max_size=3))
        shape = (dtype.block_items * draw(st.integers(1, 3)), *rest)
        size = TensorData(name, dtype, shape, b"").nbytes
        data = np.random.default_rng(draw(st.integers(0, 99))).bytes(size)
        tensors.append(TensorData(name, dtype, shape, data))
    return tensors


def same(a: Any, b: Any) -> bool:
    """Equality that looks into nested arrays and takes NaN as equal to itself."""
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, str):
        return bool(a == b)
    return np.array_equal(a, b, equal_nan=np.asarray(a).dtype.kind == "f")


@IN_ONE_FOLDER
@given(metadata_values, tensor_lists(), st.sampled_from([1, 8, 32, 256]))
def test_round_trip(
    tmp_path: Path, values: dict[str, Typed], tensors: list[TensorData], alignment: int
) -> None:
    path = tmp_path / "a.gguf"
    assert write_gguf(path, values, tensors, alignment=alignment) == [path]
    with open_gguf(path) as file:
        found = file.metadata.typed()
        if alignment != 32:
            assert found.pop("general.alignment").value == alignment
        assert list(found) == list(values)
        for key, value in values.items():
            assert (found[key].type, found[key].item) == (value.type, value.item)
            assert same(found[key].plain(), value.plain())
        assert list(file.tensors) == [t.name for t in tensors]
        for tensor in tensors:
            info = file.tensors[tensor.name]
            assert (info.dtype, info.shape) == (tensor.dtype, tensor.shape)
            assert info.data.tobytes() == tensor.data
            assert info.start % alignment == 0


@IN_ONE_FOLDER
@given(tensor_lists().filter(bool), st.integers(1, 3000))
def test_shards_round_trip(tmp_path: Path, tensors: list[TensorData], limit: int) -> None:
    paths = write_gguf(tmp_path / "m.gguf", {"a.b": "x"}, tensors, split_max_bytes=limit)
    with open_gguf(paths[0]) as file:
        assert file.metadata["a.b"] == "x"
        assert len(file.shards) == len(paths)
        assert file.nbytes == sum(p.stat().st_size for p in paths)
        for tensor in tensors:
            assert file.tensors[tensor.name].data.tobytes() == tensor.data
        for shard in file.shards:
            held = sum(entry.nbytes for entry in shard.header.tensors)
            assert held <= limit or len(shard.header.tensors) == 1


def test_shards_become_one_file_again(tmp_path: Path) -> None:
    tensors = [TensorData(name, F32, (4,), bytes(16)) for name in "abc"]
    paths = write_gguf(tmp_path / "m.gguf", {"k": 1}, tensors, split_max_bytes=16)
    assert [p.name for p in paths] == [f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    with open_gguf(paths[0]) as split:
        copies = [TensorData(t.name, t.dtype, t.shape, t.data) for t in split.tensors.values()]
        write_gguf(tmp_path / "one.gguf", split.metadata.typed(), copies)
    with open_gguf(tmp_path / "one.gguf") as one:
        assert dict(one.metadata) == {"k": 1}
        assert list(one.tensors) == ["a", "b", "c"]


def test_the_gguf_package_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    values = {
        "general.architecture": "llama",
        "n": 7,
        "x": 0.5,
        "words": ["a", "bc"],
        "ids": [1, -2],
    }
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    write_gguf(path, values, [TensorData("w", F32, (4, 3), rows)])
    reader = GGUFReader(path)
    assert {key: reader.fields[key].contents() for key in values} == values
    np.testing.assert_array_equal(reader.tensors[0].data, rows)


@pytest.mark.parametrize(
    ("value", "kind", "item"),
    [
        (True, ValueType.BOOL, None),
        (3, ValueType.U32, None),
        (-3, ValueType.I32, None),
        (2**40, ValueType.U64, None),
        (-(2**40), ValueType.I64, None),
        (0.5, ValueType.F32, None),
        ("x", ValueType.STRING, None),
        (np.int8(1), ValueType.I8, None),
        ([1, 2], ValueType.ARRAY, ValueType.I32),
        ([1, 2**40], ValueType.ARRAY, ValueType.I64),
        ([1, 0.5], ValueType.ARRAY, ValueType.F32),
        ([True], ValueType.ARRAY, ValueType.BOOL),
        (["x"], ValueType.ARRAY, ValueType.STRING),
        (np.zeros(2, np.uint16), ValueType.ARRAY, ValueType.U16),
        (u32(1), ValueType.U32, None),
    ],
)
def test_types_of_plain_values(value: Any, kind: ValueType, item: ValueType | None) -> None:
    typed = Typed.of(value)
    assert (typed.type, typed.item) == (kind, item)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "has no type of its own"),
        ([1, "x"], "mixes types"),
        (None, "has no type of its own"),
        (np.zeros((2, 2)), "has no type of its own"),
        (np.zeros(2, complex), "arrays of complex128"),
        (Typed(ValueType.U8, 256), "256 does not fit u8"),
        (Typed(ValueType.U32, "x"), "'x' does not fit u32"),
        (Typed(ValueType.BOOL, 2), "2 does not fit bool"),
        (Typed(ValueType.F32, 1e300), "does not fit f32"),
    ],
)
def test_unusable_values_are_refused_by_key(tmp_path: Path, value: Any, message: str) -> None:
    with pytest.raises(FormatError, match=f"some.key.*{message}"):
        write_gguf(tmp_path / "a.gguf", {"some.key": value}, [])
    assert list(tmp_path.iterdir()) == []


def test_elements_out_of_range_are_refused() -> None:
    with pytest.raises(FormatError, match="does not fit i8"):
        Typed.array(ValueType.I8, [1, 200])


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (TensorData("n" * 65, F32, (1,), bytes(4)), "65 bytes"),
        (TensorData("", F32, (1,), bytes(4)), "0 bytes"),
        (TensorData("w", F32, (1, 1, 1, 1, 1), bytes(4)), "shape"),
        (TensorData("w", F32, (0,), b""), "shape"),
        (TensorData("w", BY_NAME["q4_0"], (33,), bytes(18)), "not a multiple of the 32"),
        (TensorData("w", F32, (2,), bytes(4)), "8 bytes of data are needed, but 4"),
        (TensorData("w", F32, (2,), iter([bytes(8), bytes(8)])), "8 bytes .* but more"),
    ],
)
def test_unusable_tensors_are_refused(tmp_path: Path, tensor: TensorData, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        write_gguf(tmp_path / "a.gguf", {}, [tensor])
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    write_gguf(path, {"k": "old"}, [])

    def broken() -> Any:
        yield bytes(4)
        raise RuntimeError("source failed")

    with pytest.raises(RuntimeError, match="source failed"):
        write_gguf(path, {"k": "new"}, [TensorData("w", F32, (2,), broken())])
    with open_gguf(path) as file:
        assert file.metadata["k"] == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_alignment_of_the_metadata_is_kept(tmp_path: Path) -> None:
    tensors = [TensorData(name, F32, (1,), bytes(4)) for name in "ab"]
    write_gguf(tmp_path / "a.gguf", {"general.alignment": u32(128)}, tensors)
    with open_gguf(tmp_path / "a.gguf") as file:
        assert file.metadata["general.alignment"] == 128
        assert file.tensors["b"].start % 128 == 0
    with pytest.raises(FormatError, match="24 is not a power of two"):
        write_gguf(tmp_path / "b.gguf", {}, [], alignment=24)


def test_chunks_and_dtypes_are_taken_as_bytes(tmp_path: Path) -> None:
    rows = np.arange(8, dtype=np.float32)
    tensor = TensorData("w", F32, (8,), (part for part in (rows[:3], rows[3:].tobytes())))
    write_gguf(tmp_path / "a.gguf", {}, [tensor])
    with open_gguf(tmp_path / "a.gguf") as file:
        np.testing.assert_array_equal(file.tensors["w"].data.view(np.float32), rows)

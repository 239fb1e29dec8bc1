"""Opening models: shards, lifetime of the mapping, speed, and agreement with the gguf package."""

from __future__ import annotations

import gc
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from minfer.dtypes import BY_NAME
from minfer.errors import ClosedError, FormatError
from minfer.gguf import TensorData, Typed, ValueType, open_gguf, write_gguf

MODELS = sorted((Path(__file__).parent / "data" / "models").glob("*.gguf"))
F32 = BY_NAME["f32"]


def three_shards(folder: Path) -> list[Path]:
    tensors = [TensorData(name, F32, (4,), name.encode() * 16) for name in "abc"]
    return write_gguf(folder / "m.gguf", {"k": 1}, tensors, split_max_bytes=16)


def replace_value(path: Path, key: str, value: Typed) -> None:
    """Rewrite a shard with another value of a key, `split.*` included."""
    with open(path, "rb") as stream:
        data = stream.read()
    size = len(key).to_bytes(8, "little")
    at = data.index(size + key.encode()) + 8 + len(key)
    kind = data[at : at + 4]
    width = {2: 2, 5: 4}[kind[0]]
    new = int(value.value).to_bytes(width, "little", signed=True)
    path.write_bytes(data[: at + 4] + new + data[at + 4 + width :])


@pytest.mark.parametrize("path", MODELS, ids=lambda p: p.stem)
def test_agrees_with_the_gguf_package(path: Path) -> None:
    reference = GGUFReader(path)
    with open_gguf(path) as file:
        assert file.version == 3
        assert file.nbytes == path.stat().st_size
        assert list(file.metadata) == [k for k in reference.fields if not k.startswith("GGUF.")]
        for key, value in file.metadata.items():
            np.testing.assert_array_equal(value, reference.fields[key].contents())
        assert list(file.tensors) == [t.name for t in reference.tensors]
        for expected in reference.tensors:
            tensor = file.tensors[expected.name]
            assert tensor.dtype.gguf_id == expected.tensor_type
            assert tensor.shape == tuple(expected.shape)
            assert tensor.n_items == expected.n_elements == tensor.shape[0] * tensor.rows
            assert tensor.nbytes == tensor.data.size == expected.n_bytes
            np.testing.assert_array_equal(tensor.data, expected.data.view(np.uint8).ravel())


def test_data_is_a_read_only_view_of_the_mapping() -> None:
    with open_gguf(MODELS[0]) as file:
        for tensor in file.tensors.values():
            assert tensor.data.ndim == 1
            assert tensor.data.dtype == np.uint8
            assert not tensor.data.flags.writeable
            assert tensor.data.ctypes.data % tensor.alignment == 0
        first = next(iter(file.tensors.values()))
        assert np.shares_memory(first.data, first.data)


def test_closing() -> None:
    file = open_gguf(MODELS[0])
    tensor = next(iter(file.tensors.values()))
    view = tensor.data
    before = view.copy()
    file.close()
    file.close()
    np.testing.assert_array_equal(view, before)
    with pytest.raises(ClosedError, match="the model file was closed"):
        tensor.data.any()
    assert file.metadata["general.architecture"]


def test_the_mapping_goes_with_the_file() -> None:
    file = open_gguf(MODELS[0])
    mapping = weakref.ref(file.shards[0].view(0, 1).base)
    file.close()
    gc.collect()
    assert mapping() is None


def test_a_missing_file_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"none\.gguf\] the file cannot be read: No such file"):
        open_gguf(tmp_path / "none.gguf")
    with pytest.raises(FormatError, match="cannot be read: Is a directory"):
        open_gguf(tmp_path)
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(FormatError, match=r"empty\.gguf\] the file is empty"):
        open_gguf(tmp_path / "empty.gguf")


@pytest.mark.parametrize("keep", [0.5, 0.999999, 0.01])
def test_a_truncated_model(tmp_path: Path, keep: float) -> None:
    data = MODELS[0].read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(FormatError, match=r"cut\.gguf: .*truncated"):
        open_gguf(path)


def test_shards_open_from_the_first(tmp_path: Path) -> None:
    paths = three_shards(tmp_path)
    with open_gguf(paths[0]) as file:
        assert file.path == paths[0]
        assert [file.tensors[name].data.tobytes() for name in "abc"] == [
            name.encode() * 16 for name in "abc"
        ]
        assert [file.tensors[name].shard.path for name in "abc"] == paths


@pytest.mark.parametrize("number", [1, 2])
def test_a_later_shard_says_where_to_start(tmp_path: Path, number: int) -> None:
    paths = three_shards(tmp_path)
    message = f"part {number + 1} of a model in 3 files. Start from m-00001-of-00003.gguf"
    with pytest.raises(FormatError, match=message):
        open_gguf(paths[number])


def test_missing_shards_are_named(tmp_path: Path) -> None:
    paths = three_shards(tmp_path)
    paths[1].unlink()
    with pytest.raises(FormatError, match=r"1 of 3 files are missing: m-00002-of-00003\.gguf"):
        open_gguf(paths[0])
    paths[2].unlink()
    with pytest.raises(FormatError, match=r"2 of 3 .*m-00002-of-00003\.gguf, m-00003-of"):
        open_gguf(paths[0])


def test_a_renamed_shard(tmp_path: Path) -> None:
    paths = three_shards(tmp_path)
    with pytest.raises(FormatError, match=r"part 1 of 3, but its name does not"):
        open_gguf(paths[0].rename(tmp_path / "model.gguf"))


@pytest.mark.parametrize(
    ("shard", "key", "value", "message"),
    [
        (1, "split.no", 2, r"m-00002-of-00003\.gguf: split\.no\] the value is 2, but should be 1"),
        (2, "split.count", 4, r"m-00003-of-00003\.gguf: split\.count\] the value is 4"),
        (0, "split.tensors.count", 4, "4 tensors are declared, but the 3 files hold 3"),
    ],
)
def test_shards_that_disagree(
    tmp_path: Path, shard: int, key: str, value: int, message: str
) -> None:
    paths = three_shards(tmp_path)
    replace_value(paths[shard], key, Typed(ValueType.I32, value))
    with pytest.raises(FormatError, match=message):
        open_gguf(paths[0])


def test_one_tensor_in_two_shards(tmp_path: Path) -> None:
    paths = three_shards(tmp_path)
    data = paths[1].read_bytes()
    paths[1].write_bytes(data.replace((1).to_bytes(8, "little") + b"b", b"\1" + bytes(7) + b"a"))
    with pytest.raises(FormatError, match=r"00002.*: a\] the tensor is also in m-00001-of-00003"):
        open_gguf(paths[0])


def test_split_count_of_the_wrong_type(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    write_gguf(path, {"sglit.count": "three"}, [])
    path.write_bytes(path.read_bytes().replace(b"sglit", b"split"))
    with pytest.raises(FormatError, match=r"split\.count\] the value is string 'three'"):
        open_gguf(path)


def test_metadata_of_a_large_vocabulary_is_quick(tmp_path: Path) -> None:
    n = 262_144
    values = {
        "tokenizer.ggml.tokens": Typed.array(ValueType.STRING, [f"token{i}" for i in range(n)]),
        "tokenizer.ggml.scores": Typed.array(ValueType.F32, np.zeros(n, np.float32)),
        "tokenizer.ggml.token_type": Typed.array(ValueType.I32, np.ones(n, np.int32)),
    }
    path = tmp_path / "vocabulary.gguf"
    write_gguf(path, values, [])
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        with open_gguf(path) as file:
            assert len(file.metadata.get_strs("tokenizer.ggml.tokens")) == n
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.5

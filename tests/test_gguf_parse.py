"""Malformed files: each kind is one clear error, and nothing hostile is believed.

The cases are those of public bug reports and of the reference reader's own tests.
"""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import pytest
from gguf_files import (
    ARRAY,
    BOOL,
    F32,
    I32,
    STRING,
    U8,
    U32,
    U64,
    File,
    array,
    pair,
    string,
    u32,
    u64,
)
from gguf_files import tensor as entry
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minfer.errors import FormatError
from minfer.gguf import TensorData, Typed, ValueType, open_gguf, write_gguf
from minfer.gguf.parse import parse

ALIGN = "general.alignment"
KV = pair("a.key", U32, u32(5))
FEW = 4 << 20
"""Bytes that refusing a small hostile file may take at most."""


def two(first: bytes, second: bytes) -> File:
    return File(tensors=[first, second], data=bytes(512))


BAD: dict[str, tuple[File | bytes, str]] = {
    # Header
    "empty body": (b"", "magic.*4 bytes are needed at offset 0, but the file ends at 0.*truncated"),
    "bad magic": (File(magic=b"FUGG"), r"magic.*begins with b'FUGG'.*not a GGUF file"),
    "other format": (b"PK\3\4" + bytes(60), "not a GGUF file"),
    "version 0": (File(version=0), "version 0 is not supported; only versions 2 and 3"),
    "version 1": (File(version=1), "version 1 is not supported"),
    "version 4": (File(version=4), "version 4 is not supported"),
    "big-endian": (File(version=0x03000000), "0x03000000 is a byte-swapped 3.*big-endian"),
    "huge version": (File(version=0x7FFF0000), "big-endian"),
    "tensor count -1": (File(n_tensors=-1), f"tensor count.*{2**64 - 1} tensors are declared"),
    "key count -1": (File(n_pairs=-1), f"key count.*{2**64 - 1} keys are declared"),
    "tensor count too big": (File(n_tensors=1000), "1000 tensors are declared, but the 16 bytes"),
    "header only": (b"GGUF" + u32(3) + u64(0), "key count.*8 bytes are needed.*truncated"),
    # Keys and values
    "key size -1": (File([u64(-1) + b"k" * 30]), f"key 0.*string of {2**64 - 1} bytes"),
    "key above limit": (File([string("k" * 65536) + u32(U8) + b"\0"]), "above the limit of 65535"),
    "empty key": (File([pair("", U32, u32(1))]), "key 0.*the key is empty"),
    "key not UTF-8": (
        File([pair(b"a\xff", U32, u32(1))]),
        r"key 0.*byte 1 of b'a\\xff' is not UTF",
    ),
    "value type 13": (File([pair("k.k", 13, u64(0))]), r": k\.k.*type 13 is unknown.*0 to 12"),
    "item type 13": (File([pair("k.k", ARRAY, array(13, 0, u64(0)))]), "type 13 is unknown"),
    "duplicate key": (File([KV, KV]), "key 1.*'a.key' appears twice"),
    "two templates": (
        File([pair("tokenizer.chat_template", STRING, string(t)) for t in "ab"]),
        "'tokenizer.chat_template' appears twice",
    ),
    "two alignments": (File([pair(ALIGN, U32, u32(32))] * 2), f"'{ALIGN}' appears twice"),
    "string -1": (File([pair("k", STRING, string("abc", -1))]), f": k.*string of {2**64 - 1}"),
    "string 2^40": (File([pair("k", STRING, string("", 2**40))]), f"above the limit of {2**30}"),
    "string past end": (File([pair("k", STRING, string("", 2**20))]), "1048576 bytes are needed"),
    "string not UTF-8": (File([pair("k", STRING, string(b"\x80"))]), "byte 0 of .* is not UTF-8"),
    "bool 2": (File([pair("k", BOOL, b"\2" + bytes(8))]), "a bool is stored as 2; only 0 and 1"),
    "bool array": (File([pair("k", ARRAY, array(BOOL, 2, b"\1\3"))]), "a bool is stored as 3"),
    "array 2^40 of u8": (File([pair("k", ARRAY, array(U8, 2**40, b""))]), "above the limit of"),
    "array 2^30 of u8": (File([pair("k", ARRAY, array(U8, 2**30, b""))]), "1073741824 elements"),
    "array 2^30 of u64": (
        File([pair("k", ARRAY, array(U64, 2**30, b""))]),
        "but the .* bytes left",
    ),
    "array -1 of strings": (File([pair("k", ARRAY, array(STRING, -1, b""))]), "above the limit"),
    "strings past end": (
        File([pair("k", ARRAY, array(STRING, 2, string("a") + u64(99)))]),
        r"k\[1\].*string of 99 bytes is declared",
    ),
    "strings count past end": (
        File([pair("k", ARRAY, array(STRING, 3, string("abcdefgh" * 5)))], alignment=1),
        r"k\[1\].*the array runs past the file's 97 bytes.*truncated",
    ),
    "string of 2^63": (
        File([pair("k", ARRAY, array(STRING, 1, u64(2**63)))]),
        r"k\[0\].*string of 9223372036854775808 bytes",
    ),
    "arrays 2^29": (File([pair("k", ARRAY, array(ARRAY, 2**29, b""))]), "536870912 arrays"),
    "nested 1000 deep": (
        File([pair("k", ARRAY, array(ARRAY, 1, b"") * 1000 + array(U8, 0, b""))]),
        "nested more than 4 deep",
    ),
    # Alignment
    "alignment 0": (File([pair(ALIGN, U32, u32(0))]), f"{ALIGN}.*0 is not a power of two"),
    "alignment 13": (File([pair(ALIGN, U32, u32(13))]), "13 is not a power of two"),
    "alignment i32": (File([pair(ALIGN, I32, u32(32))]), "the value is i32 32, but should be u32"),
    "alignment string": (
        File([pair(ALIGN, STRING, string("32"))]),
        "is string '32'.*u32",
    ),
    "alignment 2^31": (
        File([pair(ALIGN, U32, u32(2**31))], [entry()], bytes(128)),
        "begin at offset 2147483648, but the file ends at",
    ),
    # Tensors
    "long name": (File(tensors=[entry("n" * 65)]), "string of 65 bytes is declared, above .* 64"),
    "name size -1": (File(tensors=[u64(-1) + bytes(40)]), "name of tensor 0"),
    "empty name": (File(tensors=[entry("")]), "name of tensor 0.*empty"),
    "name not UTF-8": (File(tensors=[entry(b"\xc3(")]), "name of tensor 0.*is not UTF-8"),
    "five dimensions": (File(tensors=[entry(shape=[1] * 5)]), ": t.*5 dimensions.*limit of 4"),
    "2^32-1 dimensions": (File(tensors=[entry(n_dims=2**32 - 1)]), "4294967295 dimensions"),
    "dimension 0": (File(tensors=[entry(shape=(32, 0))]), r"\(32, 0\) has a dimension of 0"),
    "dimension 2^63": (File(tensors=[entry(shape=(2**63,))]), r"above the limit of 2\^63-1"),
    "dimension 2^42+1": (
        File(tensors=[entry(shape=(32, 2**42 + 1))], data=bytes(128)),
        f"{128 * (2**42 + 1)} bytes of f32 data",
    ),
    "product wraps to 0": (File(tensors=[entry(shape=(2**32, 2**32))]), r"limit of 2\^63-1"),
    "bytes wrap": (
        File(tensors=[entry(shape=(2**61,), kind=27)], data=bytes(64)),
        f"{2**64} bytes of i64 data",
    ),
    "type 4": (File(tensors=[entry(kind=4)]), "tensor type 4 is unknown; the types are 0 f32"),
    "type -1": (File(tensors=[entry(kind=2**32 - 1)]), "tensor type 4294967295 is unknown"),
    "row of 33": (
        File(tensors=[entry(shape=(33,), kind=2)], data=bytes(64)),
        "a row has 33 values, which is not a multiple of the 32 of a q4_0 block",
    ),
    "quantized scalar": (File(tensors=[entry(shape=(), kind=2)]), "a row has 1 values"),
    "duplicate name": (
        two(entry("t"), entry("t", offset=128)),
        "tensor 1: *.*'t' appears twice|'t'",
    ),
    "offset 2^40": (File(tensors=[entry(offset=2**40)], data=bytes(128)), f"offset is {2**40}"),
    "offset wraps": (
        File(tensors=[entry(offset=2**64 - 32)], data=bytes(256)),
        f"the data offset is {2**64 - 32}, but should be 0",
    ),
    "offset unaligned": (two(entry("a", (1,)), entry("b", offset=4)), "is 4, but should be 32"),
    "gap": (two(entry("a"), entry("b", offset=256)), "b.*is 256, but should be 128"),
    "overlap": (two(entry("a"), entry("b", offset=0)), "b.*is 0, but should be 128"),
    "data short by one": (
        File(tensors=[entry()], data=bytes(127)),
        ": t.*128 bytes of f32 data begin at offset 64.* the file ends at 191.*looks truncated",
    ),
    "no data": (File(tensors=[entry()]), "looks truncated"),
    "alignment of the data differs": (
        File([pair(ALIGN, U32, u32(64))], [entry("a", (1,)), entry("b", offset=32)], bytes(512)),
        "b.*is 32, but should be 64",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_malformed(name: str) -> None:
    file, message = BAD[name]
    data = file if isinstance(file, bytes) else file.build()
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=message) as caught:
            parse(data, "bad.gguf")
        assert tracemalloc.get_traced_memory()[1] < FEW
    finally:
        tracemalloc.stop()
    assert str(caught.value).startswith("[bad.gguf: ")
    assert "\n" not in str(caught.value)


GOOD: dict[str, File] = {
    "nothing": File(),
    "version 2": File(version=2),
    "a key": File([KV]),
    "a tensor": File([KV], [entry()], bytes(128)),
    "last padding missing": File([], [entry(shape=(3,))], bytes(12)),
    "bytes behind": File([], [entry()], bytes(999)),
    "alignment 1": File(
        [pair(ALIGN, U32, u32(1))],
        [entry("a", (1,)), entry("b", (1,), offset=4)],
        bytes(8),
        alignment=1,
    ),
    "alignment 1024": File(
        [pair(ALIGN, U32, u32(1024))],
        [entry("a", (1,)), entry("b", (1,), offset=1024)],
        bytes(1028),
        alignment=1024,
    ),
    "scalar tensor": File([], [entry(shape=())], bytes(4)),
    "name of 64": File([], [entry("n" * 64)], bytes(128)),
    "every type": File(
        [
            pair(f"k{kind}", kind, bytes(8)[:size])
            for kind, size in enumerate([1, 1, 2, 2, 4, 4, 4, 1, 8])
        ]
        + [pair(f"k{kind}", kind, bytes(8)) for kind in (10, 11, 12)]
        + [pair("e", ARRAY, array(kind, 0, b"")) for kind in (U8,)]
    ),
    "nested array": File(
        [pair("k", ARRAY, array(ARRAY, 2, array(U8, 1, b"x") + array(F32, 0, b"")))]
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_well_formed(name: str) -> None:
    file = GOOD[name]
    header = parse(file.build(), "good.gguf")
    assert len(header.metadata) == len(file.pairs)
    assert len(header.tensors) == len(file.tensors)


def test_tokens_that_are_not_utf8_keep_their_bytes() -> None:
    tokens = [b"\xe2\x96", b"\x81", "é".encode(), b"\xff\xfe", b""]
    data = array(STRING, len(tokens), b"".join(map(string, tokens)))
    metadata = parse(File([pair("t", ARRAY, data)]).build(), "t.gguf").metadata
    assert [t.encode("utf-8", "surrogateescape") for t in metadata.get_strs("t")] == tokens


def valid_file() -> bytes:
    pairs = [
        pair("general.architecture", STRING, string("llama")),
        pair("a.b", U32, u32(3)),
        pair("c", BOOL, b"\1"),
        pair("d", F32, struct.pack("<f", 0.5)),
        pair("ids", ARRAY, array(I32, 3, bytes(12))),
        pair("words", ARRAY, array(STRING, 2, string("one") + string("två"))),
        pair("deep", ARRAY, array(ARRAY, 1, array(U8, 2, b"ab"))),
        pair(ALIGN, U32, u32(32)),
    ]
    tensors = [entry("w", (32, 2), kind=2), entry("v", (4,), offset=64)]
    return File(pairs, tensors, bytes(80)).build()


VALID = valid_file()


def outcome(data: bytes) -> str:
    """Parse to the end; anything but success or a `FormatError` fails the test that calls."""
    try:
        header = parse(data, "x.gguf")
    except FormatError as error:
        return str(error)
    for tensor in header.tensors:
        assert 0 <= tensor.start <= tensor.start + tensor.nbytes <= len(data)
    for key in header.metadata:
        header.metadata[key]
    return ""


@pytest.mark.parametrize("size", range(len(VALID)))
def test_every_truncation(size: int) -> None:
    assert outcome(VALID[:size])


EDGES = st.sampled_from(
    [0, 1, 2**31, 2**32 - 1, 2**40, 2**61, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1]
)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, len(VALID) - 1), st.integers(0, 255)), max_size=6),
    st.lists(st.tuples(st.integers(0, len(VALID) - 8), EDGES), max_size=2),
    st.integers(0, len(VALID)),
)
def test_mutations(
    bytes_set: list[tuple[int, int]], words_set: list[tuple[int, int]], end: int
) -> None:
    data = bytearray(VALID)
    for position, word in words_set:
        data[position : position + 8] = u64(word)
    for position, byte in bytes_set:
        data[position] = byte
    outcome(bytes(data))
    outcome(bytes(data[:end]))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_after_the_magic(tail: bytes) -> None:
    outcome(b"GGUF" + u32(3) + tail)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(0, 10**6), st.integers(0, 255))
def test_mutations_of_a_file_with_mapping(tmp_path: Path, position: int, byte: int) -> None:
    path = tmp_path / "f.gguf"
    data = bytearray(VALID)
    data[position % len(data)] = byte
    path.write_bytes(data)
    try:
        with open_gguf(path) as file:
            for tensor in file.tensors.values():
                assert tensor.data.nbytes == tensor.nbytes
    except FormatError as error:
        assert str(path) in str(error)


def test_optional_general_keys_may_be_missing(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", {"x.block_count": 1}, [])
    with open_gguf(tmp_path / "a.gguf") as file:
        assert dict(file.metadata) == {"x.block_count": 1}


def test_quantization_version_of_quantized_files(tmp_path: Path) -> None:
    from minfer.dtypes import BY_NAME

    values = {"general.quantization_version": Typed(ValueType.U32, 1)}
    plain = [TensorData("w", BY_NAME["f32"], (32,), bytes(128))]
    packed = [TensorData("w", BY_NAME["q4_0"], (32,), bytes(18))]
    write_gguf(tmp_path / "plain.gguf", values, plain)
    open_gguf(tmp_path / "plain.gguf").close()
    write_gguf(tmp_path / "packed.gguf", values, packed)
    with pytest.raises(FormatError, match="quantization version 1 is not supported"):
        open_gguf(tmp_path / "packed.gguf")

"""Matrix products by the CUDA kernels, emulated: rings, clusters, both sorts of tensor cores.

The shapes are small ones of `test_cuda_matmul.py`, whose bench runs here without a GPU. Every
kernel runs by both schedules of the emulator and must give the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from emulated import AMPERE, HOPPER, EmulatedDevice, reason_against
from test_cuda_matmul import TOLERANCE, Bench, Make, error, gated, geometries
from test_cuda_matmul import test_every_code as test_every_code  # with the bench of this module
from test_cuda_matmul import (
    test_every_tile_gives_the_same_bits as test_every_tile_gives_the_same_bits,
)
from test_cuda_matmul import (
    test_kept_halves_give_the_same_bits as test_kept_halves_give_the_same_bits,
)

from minfer.backends.cuda.device import Facts
from minfer.backends.cuda.launch import Kernel, Launch
from minfer.backends.cuda.ops import matmul, matmul_pack
from minfer.backends.cuda.ops import matmul_choose as choose
from minfer.backends.cuda.ops.base import Normed
from minfer.backends.cuda.ops.matmul import GELU, SILU, Product
from minfer.backends.cuda.ops.matmul_pack import Group
from minfer.dtypes import BY_NAME, DType
from minfer.graph import WeightSpec

REASON = reason_against()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))


TYPES = ("q4_K", "q6_K", "q8_0", "q5_0", "f16")
ROWS = (1, 2, 3, 8, 16, 17, 33, 64, 70, 130)


def width(dtype: DType) -> int:
    return 1280 if dtype.block_items == 256 else 928


class EmulatedBench(Bench):
    """A bench on an emulated card."""

    def __init__(self, facts: Facts, ahead: bool = True) -> None:
        self._ahead = ahead
        self._known: dict[bool, set[Kernel]] = {False: set(), True: set()}  # by the late schedule
        self.emulated = EmulatedDevice(facts, overlaps=False)  # its scratch is large
        with mock.patch("minfer.backends.cuda.device.Device", lambda settings, say: self.emulated):
            super().__init__(facts.generic)

    def prepare(self, generic: bool) -> None:
        """Compile what the sweeps over types need, together."""
        launches: list[Launch] = []
        for name in TYPES if self._ahead else ():
            dtype = BY_NAME[name]
            for n_cols, n_rows, rows in (
                (width(dtype), 88, [(n, n) for n in ROWS]),
                (512, 200, [(140, 3)]),
            ):
                group = Group(("w",), (WeightSpec(dtype, (n_cols, n_rows)),))
                launches += matmul_pack.pack(group, 0, 0, 0)
                for n, single in rows:
                    product = Product(group, 0, Normed(0), 0, n, single)
                    launches += matmul.project(product, self.context)
        self.device.prepare(launch.kernel for launch in launches)

    def run(self, *args: Any, **more: Any) -> Any:
        """The product by one schedule, and by the other, in turn; by both if a kernel is new to it.

        Where both run they agree.
        """
        found = self._by_turn(*args, **more)
        if not self.emulated.kernels <= self._known[not self.emulated.late]:
            np.testing.assert_array_equal(self._by_turn(*args, **more), found)
        return found

    def _by_turn(self, *args: Any, **more: Any) -> Any:
        self.emulated.late = not self.emulated.late
        self.emulated.kernels.clear()
        found = super().run(*args, **more)
        self._known[self.emulated.late] |= self.emulated.kernels
        return found

    def kernel(self, group: Any, rows: int) -> str:
        """The kernel of so many single rows."""
        return choose.single_rows_kernel(group, rows, self.device.facts)


@pytest.fixture(scope="module", params=[HOPPER, AMPERE], ids=["hopper", "ampere"])
def bench(request: pytest.FixtureRequest) -> Iterator[EmulatedBench]:
    made = EmulatedBench(request.param)
    yield made
    made.device.close()


@pytest.mark.parametrize("name", TYPES)
def test_single_rows(bench: EmulatedBench, name: str) -> None:
    """Right, and a row's bits are those it has among any other rows of the same kernel."""
    dtype = BY_NAME[name]
    group, (w,) = bench.group([dtype], width(dtype), [88])
    x = bench.activations(ROWS[-1], width(dtype))
    seen: dict[str, Any] = {}
    for rows in ROWS:
        found = bench.run(group, x[:rows], rows)
        assert error(found, x[:rows] @ w.T) < TOLERANCE, rows
        before = seen.setdefault(bench.kernel(group, rows), found)
        np.testing.assert_array_equal(before, found[: len(before)], f"{rows} rows")


@pytest.mark.parametrize("name", TYPES)
def test_many_rows(bench: EmulatedBench, name: str) -> None:
    dtype = BY_NAME[name]
    group, (w,) = bench.group([dtype], 512, [200])
    for rows, single in ((17, 0), (140, 3)):
        x = bench.activations(rows, 512)
        assert error(bench.run(group, x, single), x @ w.T) < TOLERANCE, rows


@pytest.mark.parametrize("n_out", [96, 33])
@pytest.mark.parametrize("rows, single", [(1, 1), (2, 2), (7, 7), (20, 20), (70, 70), (20, 0)])
def test_bias_and_residual_are_the_ops_alone(
    bench: EmulatedBench, rows: int, single: int, n_out: int
) -> None:
    """Bit for bit the product, then the bias added, then the residual."""
    group, _ = bench.group([BY_NAME["q4_K"]], 768, [n_out])
    x = bench.activations(rows, 768)
    bias = bench.rng.standard_normal(n_out).astype(np.float32)
    residual = bench.rng.standard_normal((rows, n_out)).astype(np.float32)
    plain = bench.run(group, x, single)
    np.testing.assert_array_equal(bench.run(group, x, single, bias=bias), plain + bias)
    np.testing.assert_array_equal(bench.run(group, x, single, residual=residual), plain + residual)
    both = bench.run(group, x, single, bias=bias, residual=residual)
    np.testing.assert_array_equal(both, (plain + bias) + residual)


@pytest.mark.parametrize("rows, single", [(1, 1), (9, 9), (20, 20), (70, 70), (30, 2)])
def test_normed(bench: EmulatedBench, rows: int, single: int) -> None:
    group, (w,) = bench.group([BY_NAME["q8_0"]], 544, [48])
    x = bench.activations(rows, 544)
    weight = bench.rng.standard_normal(544).astype(np.float32)
    normed = x / np.sqrt(np.mean(x.astype(np.float64) ** 2, 1, keepdims=True) + 1e-5) * weight
    assert error(bench.run(group, x, single, norm=weight), normed @ w.T) < TOLERANCE


@pytest.mark.parametrize("rows, single", [(1, 1), (7, 7), (33, 33), (90, 90), (150, 2)])
def test_side_by_side(bench: EmulatedBench, rows: int, single: int) -> None:
    types = [BY_NAME[n] for n in ("q4_K", "q4_K", "q6_K")]
    group, values = bench.group(types, 1024, [160, 32, 32])
    x = bench.activations(rows, 1024)
    found = bench.run(group, x, single)
    assert error(found, x @ np.concatenate(values).T) < TOLERANCE


@pytest.mark.parametrize(
    "rows, single, epilogue",
    [(1, 1, SILU), (8, 8, GELU), (20, 20, SILU), (80, 80, SILU), (40, 0, GELU)],
)
def test_gated(bench: EmulatedBench, rows: int, single: int, epilogue: int) -> None:
    group, (gate, up) = bench.group([BY_NAME["q4_K"]] * 2, 512, [88, 88], paired=True)
    x = bench.activations(rows, 512)
    found = bench.run(group, x, single, epilogue)
    assert error(found, gated(x, gate, up, epilogue)) < 2 * TOLERANCE


@pytest.mark.parametrize(
    "n_sms, round_bytes, nominal_sms, n_cols, n_out",
    [
        (3, 1024, 132, 1280, 400),  # several rounds
        (1, 2048, 2, 736, 401),  # of several groups
        (1, choose.ROUND_BYTES, 1, 768, 1536),  # one round that groups do not divide
        (1, choose.ROUND_BYTES, 132, 256, 1601),  # more outputs in one than threads
        (2, 600, 3, 4704, 145),  # a warp with several pieces of x, and half of one
    ],
)
def test_one_row_in_rounds(
    bench: EmulatedBench,
    monkeypatch: pytest.MonkeyPatch,
    n_sms: int,
    round_bytes: int,
    nominal_sms: int,
    n_cols: int,
    n_out: int,
) -> None:
    """Right where a block has many tiles, on a card with few multiprocessors."""
    monkeypatch.setattr(choose, "ROUND_BYTES", round_bytes)
    monkeypatch.setattr(choose, "_NOMINAL_SMS", nominal_sms)
    few = EmulatedBench(replace(bench.device.facts, n_sms=n_sms), ahead=False)
    group, (w,) = few.group([BY_NAME["q8_0"]], n_cols, [n_out])
    if few.kernel(group, 1) != "matmul_vec":
        pytest.skip("it does not fit this card's shared memory")
    x = few.activations(1, n_cols)
    weight = few.rng.standard_normal(n_cols).astype(np.float32)
    residual = few.rng.standard_normal((1, n_out)).astype(np.float32)
    plain = few.run(group, x, 1, norm=weight)
    normed = x / np.sqrt(np.mean(x.astype(np.float64) ** 2, 1, keepdims=True) + 1e-5) * weight
    assert error(plain, normed @ w.T) < TOLERANCE
    found = few.run(group, x, 1, norm=weight, residual=residual)
    np.testing.assert_array_equal(found, plain + residual)
    few.device.close()


@pytest.mark.parametrize("size", [1e-28, 1.0, 1e30])
def test_one_row_of_any_size(bench: EmulatedBench, size: float) -> None:
    group, (w,) = bench.group([BY_NAME["q4_K"]], 512, [32])
    x = bench.activations(1, 512)
    x *= size / np.abs(x).max()
    assert error(bench.run(group, x, 1), x @ w.T) < TOLERANCE


def test_padded_rows_are_left_alone(bench: EmulatedBench) -> None:
    group, (w,) = bench.group([BY_NAME["q4_K"]], 512, [64])
    x = bench.activations(300, 512)
    x[140:] = np.nan
    assert error(bench.run(group, x, 0)[:140], x[:140] @ w.T) < TOLERANCE


def forms(bench: EmulatedBench, group: Group, x: Any, made: Iterable[Make]) -> Iterator[Any]:
    """What forms of a product give, those that fit; one by the early schedule, the next late."""
    device, rows = bench.device, len(x)
    address = device.allocate(x.nbytes, "x")
    out = device.allocate(4 * rows * group.n_outputs, "out")
    device.upload(address, x)
    product = Product(group, bench.store.address(group.key), Normed(address), out, rows, rows)
    every = [make(product, bench.context) for make in made]
    fitting = [
        launches
        for launches in every
        if all(launch.shared <= device.facts.shared_limit for launch in launches)
    ]
    device.prepare(launch.kernel for launches in fitting for launch in launches)
    for number, launches in enumerate(fitting):
        bench.emulated.late = number % 2 > 0
        device.fill(out, 0xFF, 4 * rows * group.n_outputs)
        device.run(launches)
        found = device.download(out, 4 * rows * group.n_outputs).view(np.float32)
        yield found.reshape(rows, -1)
    for block in (address, out):
        device.free(block)


@pytest.mark.parametrize("rows", [1, 5, 20, 96])
def test_every_geometry_gives_the_same_bits(bench: EmulatedBench, rows: int) -> None:
    group, _ = bench.group([BY_NAME["q4_K"]], 2560, [176])
    x = bench.activations(rows, 2560).astype(np.float32)
    expected = bench.run(group, x, rows)
    for found in forms(bench, group, x, geometries(group, rows, bench.device.facts)):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("rows", [3, 20])
def test_clusters_of_every_size(rows: int) -> None:
    bench = EmulatedBench(HOPPER, ahead=False)
    group, (w,) = bench.group([BY_NAME["q4_K"]], 2048, [80])
    x = bench.activations(rows, 2048).astype(np.float32)
    found: dict[int, Make] = {}
    if choose.single_rows_kernel(group, rows, HOPPER) == "matmul_batch_sm90":
        for wide in choose.hopper_batches(group, 32, HOPPER):
            found.setdefault(
                wide.ranks,
                lambda p, ctx, v=wide: matmul.hopper_batch_launches(p, v, ctx),  # type: ignore[misc]
            )
    else:
        for ranks in range(1, 9):
            for narrow in choose.batches(group, 8, ranks, HOPPER):
                found.setdefault(
                    ranks,
                    lambda p, ctx, v=narrow: matmul.batch_launches(p, 0, rows, v, ctx),  # type: ignore[misc]
                )
    assert set(found) == set(range(1, 9))
    for y in forms(bench, group, x, found.values()):
        assert error(y, x @ w.T) < TOLERANCE

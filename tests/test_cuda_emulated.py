"""The emulator of CUDA kernels itself: arithmetic, mistakes it finds, mutants of kernels."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from attention_cases import Heads, attend, expected, prefill
from backend_runner import run
from emulated import AMPERE, HOPPER, EmulatedDevice, Emulator, emulated_backend, reason_against
from emulated.translate import translate
from op_cases import cases, relative_error
from test_backend_attention import TOLERANCE as ATTENTION_TOLERANCE

from minfer.backends.cuda import compile as cuda_compile
from minfer.backends.cuda.device import Facts
from minfer.backends.cuda.launch import Launch, kernel
from minfer.errors import BackendError

REASON = reason_against()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))

HEADERS = '#include "lib/attention.cuh"\n'
BEGIN = "pdl_launch(); pdl_wait(); int lane = threadIdx.x % WARP;"

Play = Callable[..., Any]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Runs a kernel's body, with parameters `const u32* in, u32* out`, on an emulated Hopper."""
    names = (f"trial{number}.cu" for number in count())

    def play(body: str, given: Any, n_out: int, late: bool = False, **launch: Any) -> Any:
        text = f"{HEADERS}KERNEL trial(const u32* in, u32* out) {{ {body} }}\n"
        file = tmp_path / next(names)
        file.write_text(text)
        device = EmulatedDevice(HOPPER, late)
        data = np.ascontiguousarray(given).view(np.uint32)
        addresses = device.allocate(data.nbytes, "in"), device.allocate(4 * n_out, "out")
        device.upload(addresses[0], data)
        what = kernel(str(file), "trial", "p p")
        sizes: dict[str, Any] = {"grid": (1, 1, 1), "block": 32} | launch
        device.run([Launch(what, args=addresses, **sizes)])
        return device.download(addresses[1], 4 * n_out).view(np.uint32)

    return play


def test_inline_ptx_becomes_calls() -> None:
    text = translate(
        'asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; "\n'
        '"selp.u32 %0, 1, %1, p; }" : "=r"(x[i]) : "r"(f(a, b)), "n"(N) : "memory");'
    )
    assert text.split("\n", 2)[2].strip() == (
        "{ auto& operand_0 = (x[i]); const auto& operand_1 = (f(a, b)); "
        "const auto& operand_2 = (N); bool p; ptx::setp_ne_b32(p, operand_2, 0); "
        "ptx::selp_u32(operand_0, 1, operand_1, p); }"
    )


def test_an_instruction_that_is_not_known_does_not_compile(play: Play) -> None:
    with pytest.raises(BackendError, match="trap_now"):
        play('asm volatile("trap.now;");', np.zeros(1, np.uint32), 1)


def halves(n: int) -> Any:
    """Pairs of halves of every size, with zeros, subnormals and what overflows."""
    return np.random.default_rng(1).integers(0, 0x7C00, 2 * n, np.uint16)


@pytest.mark.parametrize(
    ("call", "right"),
    [
        ("add2(a, b)", lambda a, b: a + b),
        ("sub2(a, b)", lambda a, b: a - b),
        ("mul2(a, b)", lambda a, b: a * b),
        ("fma2(a, b, a)", lambda a, b: a.astype(np.longdouble) * b + a),
    ],
)
def test_halves_round_as_numpy_rounds(play: Play, call: str, right: Any) -> None:
    a, b = halves(512), halves(1024)[1024:]
    body = f"{BEGIN} for (int i = lane; i < 512; i += 32) {{ u32 a = in[i], b = in[i + 512];"
    found = play(f"{body} out[i] = {call}; }}", np.concatenate([a, b]), 512).view(np.float16)
    with np.errstate(over="ignore"):
        expected = right(a.view(np.float16), b.view(np.float16)).astype(np.float16)
    np.testing.assert_array_equal(found, expected)


def test_floats_become_halves_as_numpy_makes_them(play: Play) -> None:
    rng = np.random.default_rng(2)
    x = (rng.standard_normal(2048) * 2.0 ** rng.integers(-28, 18, 2048)).astype(np.float32)
    x[:8] = 0, -0.0, np.inf, 65519.99, 65520, 2**-25, 3 * 2**-25, 2**-14
    body = f"{BEGIN} for (int i = lane; i < 1024; i += 32) {{ const float* x = (const float*)in;"
    found = play(f"{body} out[i] = pack_f16(x[2 * i], x[2 * i + 1]); }}", x, 1024)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(found.view(np.float16), x.astype(np.float16))


def test_a_warp_multiplies(play: Play) -> None:
    """Through `ldmatrix`, with fragments as the instruction wants them."""
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((16, 16), (8, 16)))
    body = f"""
        __shared__ __align__(16) u32 tiles[192];
        {BEGIN}
        for (int i = lane; i < 192; i += 32) tiles[i] = in[i];
        __syncwarp();
        u32 x[4], y[4];
        float c[4] = {{}};
        load_matrix4(x, shared_address(tiles) + lane % 16 * 32 + lane / 16 * 16);
        load_matrix4(y, shared_address(tiles + 128) + lane % 8 * 32 + lane / 8 % 2 * 16);
        mma_f16(c, x[0], x[1], x[2], x[3], y[0], y[1]);
        float* to = (float*)out + lane / 4 * 8 + lane % 4 * 2;
        to[0] = c[0], to[1] = c[1], to[64] = c[2], to[65] = c[3];"""
    found = play(body, np.concatenate([a, b]), 128).view(np.float32).reshape(16, 8)
    np.testing.assert_allclose(found, a.astype(np.float32) @ b.astype(np.float32).T, rtol=1e-5)


SHARED = "extern __shared__ __align__(16) u8 shared[]; u64* barrier = (u64*)shared;"
INIT = "if (lane == 0) barrier_init(barrier, 1); __syncwarp();"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("pdl_launch();", "without pdl_launch and pdl_wait"),
        (f"{BEGIN} if (lane) __syncwarp();", "no thread can go on"),
        (f"{BEGIN} if (lane) __syncwarp(); else warp_sum(1.0f);", "meet at"),
        (f"{BEGIN} if (lane % 2) __syncthreads(); else sync_two();", "no thread can go on"),
        (f"{SHARED} {BEGIN} barrier_wait(barrier, 0);", "was not initialised"),
        (f"{SHARED} {BEGIN} {INIT} barrier_wait(barrier, 0);", "no thread can go on"),
        (f"{SHARED} {BEGIN} {INIT} barrier_arrive(barrier + 8);", "64"),
        (f"{SHARED} {BEGIN} if (lane == 0) shared[64] = 1;", "behind its end"),
        (f"{SHARED} {BEGIN} load_shared16(shared_address(shared) + 4);", "not aligned"),
        (f"{BEGIN} copy16_async((void*)in, in);", "outside of shared memory"),
        (f"{BEGIN} out[1] = 0;", "beside a block"),
    ],
)
def test_broken_rules_are_told(play: Play, body: str, told: str) -> None:
    body = body.replace("sync_two()", 'asm volatile("bar.sync 1, 64;")')
    with pytest.raises(BackendError, match=told):
        play(body, np.zeros(4, np.uint32), 1, shared=64)


@pytest.mark.parametrize("waits", [True, False])
def test_a_copy_that_is_not_awaited_shows(play: Play, waits: bool) -> None:
    """By the early schedule it has arrived, in no order; by the late one it has not."""
    body = f"""{SHARED} {BEGIN}
        if (lane == 0) {{
            barrier_init(barrier, 1);
            barrier_init_fence();
            barrier_expect(barrier, 16);
            bulk_copy(shared + 16, in, 16, barrier);
        }}
        __syncwarp();
        {"barrier_wait(barrier, 0);" if waits else ""}
        if (lane < 4) out[lane] = ((u32*)shared)[4 + lane];"""
    given = np.arange(1, 5, dtype=np.uint32)
    for late, told in ((False, "nothing orders them"), (True, "a block that has ended")):
        if waits:
            np.testing.assert_array_equal(play(body, given, 4, late, shared=64), given)
        else:
            with pytest.raises(BackendError, match=told):
                play(body, given, 4, late, shared=64)


@pytest.mark.parametrize("syncs", [True, False])
def test_a_race_of_two_warps_shows(play: Play, syncs: bool) -> None:
    """By the early schedule as one; by the late one in the result."""
    body = f"""__shared__ u32 passed[32]; {BEGIN}
        if (threadIdx.x < 32) passed[lane] = in[0];
        {"__syncthreads();" if syncs else ""}
        if (threadIdx.x >= 32) out[lane] = passed[lane];"""
    given = np.array([7], np.uint32)
    if syncs:
        assert (play(body, given, 32, block=64) == 7).all()
    else:
        with pytest.raises(BackendError, match="nothing orders them"):
            play(body, given, 32, block=64)
    assert (play(body, given, 32, late=True, block=64) == 7).all() == syncs


@pytest.mark.parametrize("stays", [True, False])
def test_blocks_of_a_cluster_see_each_other(play: Play, stays: bool) -> None:
    """As long as they are there."""
    body = f"""__shared__ __align__(8) float2 mine; {BEGIN}
        u32 rank = blockIdx.x;
        if (lane == 0) mine = make_float2((float)rank, 0.5f);
        __syncwarp();
        cluster_sync();
        float2 next = load_sums<4>(cluster_address(shared_address(&mine), (rank + 1) % 4));
        if (lane == 0) ((float*)out)[rank] = next.x + next.y;
        __syncwarp();
        {"cluster_leave();" if stays else ""}"""
    for late in (False, True):
        if stays:
            found = play(body, np.zeros(1, np.uint32), 4, late, grid=(4, 1, 1), cluster=4)
            assert found.view(np.float32).tolist() == [1.5, 2.5, 3.5, 0.5]
        else:
            with pytest.raises(BackendError, match="a block that has ended"):
                play(body, np.zeros(1, np.uint32), 4, late, grid=(4, 1, 1), cluster=4)


MUTANTS = [
    (HOPPER, "penalize-100", "count++;", "count = 1;"),
    (HOPPER, "matmul-q4_K-512x80-rows1+0", "barrier_wait(barriers + at, parity);", ""),
    (AMPERE, "matmul-q4_K-512x80-rows1+0", "copy_wait<SLOTS - 1>();", ""),
    (HOPPER, "matmul-q8_0-576x1000-rows0+130-bias-residual", "wgmma_wait<1>();", ""),
    (HOPPER, "matmul-q8_0-288x33-rows17+0", "(u64)64 << 32", "(u64)32 << 32"),
    (HOPPER, "matmul-q4_K-512x80-rows0+37", "barrier_wait(full + at, parity);", ""),
    (AMPERE, "matmul-q4_K-512x80-rows0+37", "copy_wait<STAGES - 2>();", ""),
    (
        HOPPER,
        "matmul-q8_0-288x33-rows17+0",
        "pdl_wait();\n    if (warp == 0 && elect())\n"
        "        for (int i = 0; i < X_STAGES; i++) fetch_x(i, first_strip + i);",
        "if (warp == 0 && elect())\n"
        "        for (int i = 0; i < X_STAGES; i++) fetch_x(i, first_strip + i);\n    pdl_wait();",
    ),
    *(
        (
            card,
            "matmul-q8_0-7168x33-rows9+0",
            "if (p >= first_piece + X_STAGES) sync_some<THREADS>(1 + at);",
            "",
        )
        for card in (HOPPER, AMPERE)
    ),
    (HOPPER, "rms_norm-576-by576-x1", "__syncthreads();", ""),
    (HOPPER, "embed-q4_K-x1", "b + 4", "b + 5"),
]


@contextmanager
def changed(card: Facts, old: str | re.Pattern[str], new: str) -> Iterator[None]:
    """Kernels of `card` are compiled from a text with `new` in place of `old`."""
    pattern = old if isinstance(old, re.Pattern) else re.compile(re.escape(old))
    found = []

    def inline(file: str) -> str:
        text, n = pattern.subn(new, cuda_compile.inline(file))
        found.append(n)
        return text

    fresh = Emulator(card.capability, card.generic, card.shared_limit)
    with (
        mock.patch("emulated.build.inline", inline),
        mock.patch("emulated.device.emulator", lambda facts: fresh),
    ):
        yield
    assert any(found), "the kernels have no such text any more"


@pytest.mark.parametrize(
    ("card", "name", "old", "new"), MUTANTS, ids=[f"{m[1]}:{m[2].splitlines()[0]}" for m in MUTANTS]
)
def test_kernels_made_wrong_are_found_out(card: Facts, name: str, old: str, new: str) -> None:
    """The op table, by one schedule or the other, sees what is taken out of a kernel."""
    case = next(case for case in cases() if case.name == name)

    def right(late: bool) -> bool:
        try:
            (found,) = run(emulated_backend(card, late), case.graph, case.inputs, case.weights)
        except BackendError:
            return False
        error = relative_error(found[case.rows], case.expected[case.rows])
        return error <= case.tolerance("cuda")

    with changed(card, old, new):
        assert not all(right(late) for late in (False, True))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("if (copied >= STAGES) await_read(plane, place.stage);", ""),
        ("await_read(plane, stage);", ";"),
        ("barrier_wait(full[1] + place.stage, place.parity);", ""),
    ],
)
def test_attention_made_wrong_is_found_out(old: str, new: str) -> None:
    """Of a run with more steps of 64 keys than Hopper's kernel has stages."""
    heads, (seq,) = Heads(1, 1, 256), prefill((300, 9))

    def right(late: bool) -> bool:
        try:
            (rows,) = attend(emulated_backend(HOPPER, late), heads, (seq,))
        except BackendError:
            return False
        return relative_error(rows, expected(heads, seq)) <= ATTENTION_TOLERANCE[heads.dtype]

    with changed(HOPPER, old, new):
        assert not all(right(late) for late in (False, True))

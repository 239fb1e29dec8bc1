"""The emulator finds accesses that nothing orders, though results are right all the same."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from attention_cases import Heads, attend, prefill
from backend_runner import run
from emulated import AMPERE, HOPPER, EmulatedDevice, emulated_backend, reason_against
from op_cases import cases
from test_cuda_emulated import BEGIN, SHARED, Play, changed
from test_cuda_emulated import play as play  # the fixture
from test_cuda_emulated_matmul import EmulatedBench

from minfer.backends.cuda.device import Facts
from minfer.backends.cuda.launch import Launch, kernel
from minfer.dtypes import BY_NAME
from minfer.errors import BackendError

REASON = reason_against()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))

RACE = "nothing orders them"
COPY = """if (lane == 0) {
        barrier_init(barrier, 1);
        barrier_init_fence();
        fill(shared + 64, in, 64, barrier);
    }
    __syncwarp();
    barrier_wait(barrier, 0);
    u32 sum = ((u32*)shared)[16 + lane % 16];"""

BODIES = {
    "warps": ("__shared__ u32 x[64];", "x[threadIdx.x] = lane;", "__syncthreads();",
              "out[threadIdx.x] = x[threadIdx.x ^ 32];"),
    "some warps": ("__shared__ u32 x[64];", "x[threadIdx.x] = lane;", "sync_some<64>(1);",
                   "out[threadIdx.x] = x[threadIdx.x ^ 32];"),
    "one tells": ("__shared__ u32 x[64];", "x[threadIdx.x] = lane;",
                  "if (threadIdx.x < 32) arrive_some<64>(1); else sync_some<64>(1);",
                  "if (threadIdx.x >= 32) out[lane] = x[lane];"),
    "lanes": ("__shared__ u32 x[64];", "x[threadIdx.x] = lane;", "__syncwarp();",
              "out[threadIdx.x] = x[threadIdx.x ^ 1];"),
    "read, then written": ("__shared__ u32 x[64];",
                           "if (lane == 0) x[threadIdx.x / 32] = 1; __syncwarp();"
                           "out[threadIdx.x] = x[threadIdx.x / 32];", "__syncwarp();",
                           "if (lane == 5) x[threadIdx.x / 32] = 2;"),
    "bytes": ("__shared__ u8 x[64];", "x[threadIdx.x] = lane;", "__syncthreads();",
              "out[threadIdx.x] = x[63 - threadIdx.x];"),
}  # fmt: skip
"""Of two warps: what is declared, an access, what orders it, one that conflicts."""


@pytest.mark.parametrize("name", BODIES)
def test_what_orders_two_accesses(play: Play, name: str) -> None:
    declared, first, order, second = BODIES[name]
    play(f"{declared} {BEGIN} {first} {order} {second}", np.zeros(1, np.uint32), 64, block=64)
    with pytest.raises(BackendError, match=RACE):
        play(f"{declared} {BEGIN} {first} {second}", np.zeros(1, np.uint32), 64, block=64)


def test_shuffles_order_nothing(play: Play) -> None:
    body = f"__shared__ u32 x[32]; {BEGIN} x[lane] = lane; warp_sum(1.0f); out[lane] = x[lane ^ 1];"
    with pytest.raises(BackendError, match=RACE):
        play(body, np.zeros(1, np.uint32), 32)


def test_neighbours_in_a_word_do_not_race(play: Play) -> None:
    body = f"""__shared__ u8 x[32]; {BEGIN} x[lane] = lane; x[lane]++;
        out[lane] = x[lane];"""
    assert (play(body, np.zeros(1, np.uint32), 32) == np.arange(1, 33)).all()


def test_both_accesses_are_told_with_their_lines(play: Play) -> None:
    body = f"__shared__ u32 x[32];\n{BEGIN}\nx[lane] = 1;\nout[lane] = x[31 - lane];"
    with pytest.raises(
        BackendError,
        match=r"read by thread 15 at \S+trial0\.cu:5 and written by thread 16 at \S+trial0\.cu:4,",
    ):
        play(body, np.zeros(1, np.uint32), 32)


@pytest.mark.parametrize("free", ["__syncwarp();", ""])
def test_a_slot_is_filled_again_when_all_have_read_it(play: Play, free: str) -> None:
    body = f"""{SHARED} {BEGIN} {COPY} {free}
        if (lane == 0) fill(shared + 64, in + 16, 64, barrier);
        barrier_wait(barrier, 1);
        out[lane] = sum + ((u32*)shared)[16 + lane % 16];"""
    given = np.arange(32, dtype=np.uint32)
    if free:
        right = given[:16] + given[16:]
        assert (play(body, given, 32, shared=256) == np.concatenate([right, right])).all()
    else:
        with pytest.raises(BackendError, match=r"read by thread 31 .*written by a copy"):
            play(body, given, 32, shared=256)


@pytest.mark.parametrize("publishes", ["publish_shared();", ""])
def test_copies_see_what_was_published(play: Play, publishes: str) -> None:
    """A slot that threads wrote is not filled by the copy engine before a proxy fence."""
    body = f"""{SHARED} {BEGIN} {COPY} __syncwarp();
        ((u32*)shared)[16 + lane] = sum;
        {publishes} __syncwarp();
        if (lane == 0) fill(shared + 64, in, 64, barrier);
        barrier_wait(barrier, 1);
        out[lane] = ((u32*)shared)[16 + lane % 16];"""
    given = np.arange(16, dtype=np.uint32)
    if publishes:
        assert (play(body, given, 32, shared=256)[:16] == given).all()
    else:
        with pytest.raises(BackendError, match=RACE):
            play(body, given, 32, shared=256)


@pytest.mark.parametrize("counts", [True, False])
def test_blocks_that_count_each_other_in(play: Play, counts: bool) -> None:
    """The last of them reads what all wrote."""
    body = f"""__shared__ bool last; {BEGIN}
        u32* counter = (u32*)in;
        if (lane < 2) out[blockIdx.x * 2 + lane] = lane;
        __syncwarp();
        if (lane == 0) last = {"arrive(counter, 4)" if counts else "blockIdx.x == 3"};
        __syncwarp();
        if (last && lane < 8) out[8 + lane] = out[lane];"""
    if counts:
        found = play(body, np.zeros(1, np.uint32), 16, grid=(4, 1, 1))
        assert found[8:].tolist() == [0, 1] * 4
    else:
        with pytest.raises(BackendError, match="of another block"):
            play(body, np.zeros(1, np.uint32), 16, grid=(4, 1, 1))


def test_blocks_may_write_the_same(play: Play) -> None:
    body = f"{BEGIN} out[lane] = in[BLOCK]; __syncwarp(); if (out[lane ^ 1] == 99) out[lane] = 0;"
    given = np.array([7, 8, 9], np.uint32)
    same, others = (body.replace("BLOCK", which) for which in ("0", "blockIdx.x"))
    assert (play(same, given, 32, grid=(3, 1, 1)) == 7).all()
    with pytest.raises(BackendError, match=RACE):
        play(others, given, 32, grid=(3, 1, 1))


@pytest.mark.parametrize("waits", [True, False])
def test_a_launch_waits_for_the_one_before(tmp_path: Path, waits: bool) -> None:
    early, late = ("pdl_wait();", "") if waits else ("", "pdl_wait();")
    (tmp_path / "two.cu").write_text(f"""#include "lib/base.cuh"
        KERNEL first(u32* x, u32* y) {{ pdl_launch(); pdl_wait(); x[threadIdx.x] = 5; }}
        KERNEL second(u32* x, u32* y) {{
            pdl_launch();
            {early} u32 mine = x[threadIdx.x]; {late}
            y[threadIdx.x] = mine;
        }}""")
    device = EmulatedDevice(HOPPER, overlaps=False)
    args = device.allocate(128, "x"), device.allocate(128, "y")
    device.fill(args[0], 0, 128)
    launches = [
        Launch(kernel(str(tmp_path / "two.cu"), name, "p p"), (1, 1, 1), 32, args=args)
        for name in ("first", "second")
    ]
    if waits:
        device.run(launches)
        assert (device.download(args[1], 128).view(np.uint32) == 5).all()
    else:
        with pytest.raises(BackendError, match="by an earlier launch"):
            device.run(launches)


MUTANTS = [
    (HOPPER, "matmul-q8_0-576x1000-rows0+130-bias-residual", "barrier_init_fence();", ""),
    (HOPPER, "matmul-q8_0-288x33-rows17+0", "__syncthreads();  // operands are used up", "//"),
    (AMPERE, "matmul-q4_K-512x80-rows0+37", "__syncthreads();", ""),
]


@pytest.mark.parametrize(("card", "name", "old", "new"), MUTANTS, ids=[m[2] for m in MUTANTS])
def test_products_made_to_race(card: Facts, name: str, old: str, new: str) -> None:
    case = next(case for case in cases() if case.name == name)
    with changed(card, old, new), pytest.raises(BackendError, match=RACE):
        run(emulated_backend(card), case.graph, case.inputs, case.weights)


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize(
    ("rows", "kernel", "n_cols", "outputs"),
    [
        (1, "matmul_vec", 2560, 1280),
        (4, "matmul_batch", 10240, 48),
        (40, "matmul_batch_sm90", 10240, 64),
        (130, "matmul_many_sm90", 2560, 300),
    ],
)
def test_slots_of_rings_that_are_told_free_too_early(
    rows: int, kernel: str, n_cols: int, outputs: int, right: bool
) -> None:
    """Lanes have not read what the warp's next copy overwrites."""
    old, free = re.compile(r"__syncwarp\(\);(\s+fetch\(ring\.at)"), r"\1"

    def product() -> None:
        bench = EmulatedBench(HOPPER, ahead=False)
        group, _ = bench.group([BY_NAME["q8_0"]], n_cols, [outputs])
        assert bench.kernel(group, rows) == kernel
        bench.run(group, bench.activations(rows, n_cols), rows)

    if right:
        return product()
    with changed(HOPPER, old, free), pytest.raises(BackendError, match="written by a copy"):
        product()


ATTENTION = [
    ("publish_shared();\n        sync_some<128>(2 + group);", "sync_some<128>(2 + group);"),
    ("if (copied >= STAGES) await_read(plane, place.stage);", ""),
]


@pytest.mark.parametrize(
    ("old", "new"), ATTENTION, ids=[old.splitlines()[0] for old, _ in ATTENTION]
)
def test_attention_made_to_race(old: str, new: str) -> None:
    with changed(HOPPER, old, new), pytest.raises(BackendError, match=RACE):
        attend(emulated_backend(HOPPER), Heads(1, 1, 256), prefill((300, 9)))

"""What attention of many rows promises, clause by clause: `docs/kernels/attention_prefill.md`.

`test_cuda_attention.py` is about sizes, types and shapes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuda_harness import error
from test_cuda_attention import TYPES, Case, Problem, generic

from minfer.backends import Split
from minfer.backends.cuda.ops.attention_prefill import HOPPER_STAGES
from minfer.graph import PAGE

pytest_plugins = ["cuda_fixtures"]
pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("swept_kernels")]

LARGEST = 300.0
"""Of |q| and |k|: a product of two is beyond what a half holds."""
FAR = 1 << 20
"""A page so far beyond the cache that reading it is an illegal address."""
HEAD_DIMS = (64, 80, 96, 128, 256)
OWN = pytest.mark.parametrize("own", [True, False], ids=["own", "generic"])
EVERY = [
    pytest.param(head_dim, kv, own, id=f"{head_dim}-{kv}-{'own' if own else 'generic'}")
    for head_dim in HEAD_DIMS
    for kv in TYPES
    for own in (True, False)
    if own or (head_dim in HOPPER_STAGES and kv != "f32")  # else there is one kernel for all cards
]
every = pytest.mark.parametrize(("head_dim", "kv", "own"), EVERY)
"""All head sizes and caches, on this card's kernels and on those of all cards."""


def solved(gpu: Any, case: Case, own: bool) -> Problem:
    return Problem(gpu if own else generic(gpu), case)


def again(problem: Problem, **changed: Any) -> np.ndarray:
    """The same step over other numbers, its outputs poisoned before; `problem` keeps them."""
    for name, value in changed.items():
        setattr(problem, name, value)
    problem.runner.poison()
    return problem.runner(
        q=problem.q,
        k=np.concatenate([k.reshape(len(k), -1) for k, _ in problem.kv]),
        v=np.concatenate([v.reshape(len(v), -1) for _, v in problem.kv]),
    )


def attended(problem: Problem, table: np.ndarray) -> np.ndarray:
    """Attention alone over another page table; nothing is stored."""
    runner = problem.runner
    runner.upload(page_table=table)
    runner.poison()
    nodes = tuple(n.id for n in runner.graph.nodes if n.op == "attention")
    runner.backend.compile(Split(runner.graph, nodes, runner.offsets))()
    return runner.result()


def spiked(x: np.ndarray, features: np.ndarray) -> np.ndarray:
    """Some features a hundred times as large: scores of 1e4, most rows see one key alone."""
    x = x.copy()
    x[..., features] = np.clip(100.0 * x[..., features], -LARGEST, LARGEST)
    return x


def shifted(x: np.ndarray, features: np.ndarray) -> np.ndarray:
    """Some features `LARGEST` everywhere: scores of 1e4 that differ by 1, so all keys count."""
    x = x.copy()
    x[..., features] = LARGEST
    return x


@pytest.mark.parametrize("outliers", [spiked, shifted])
@every
def test_outliers(gpu: Any, head_dim: int, kv: str, own: bool, outliers: Any) -> None:
    """Against float64 over keys and values as the cache rounds them, q as the kernels do.

    Tolerances: an f32 sum of 1e5 is right to 1e-2 before it is scaled, so weights of shifted keys
    are to 1e-3; queries of single rows, and f32 keys, have 22 bits.
    """
    case = Case(head_dim=head_dim, kv=kv, lengths=(500, 70), chunks=((0, 150), (130, 40)))
    problem = solved(gpu, case, own)
    features = np.random.default_rng(head_dim).permutation(head_dim)[:2]
    q = problem.q.reshape(-1, case.n_heads, head_dim)
    out = again(
        problem,
        q=outliers(q, features).reshape(len(q), -1),
        kv=[(outliers(k, features), v) for k, v in problem.kv],
    )
    assert np.abs(problem.q).max() == LARGEST
    expected, single = problem.expected(), len(case.lengths)
    # f32 caches take the path of single rows
    tolerance = 1e-3 if outliers is spiked and kv != "f32" else 1e-2
    assert error(out[single:], expected[single:]) < tolerance
    assert error(out[:single], expected[:single]) < 1e-2


@every
def test_later_keys_count_exactly_nothing(gpu: Any, head_dim: int, kv: str, own: bool) -> None:
    """Keys that a row must not see become the largest there are: no bit of the row changes."""
    first, n, seen = 70, 150, 100
    case = Case(head_dim=head_dim, kv=kv, chunks=((first, n),))
    problem = solved(gpu, case, own)
    ((k, v),) = problem.kv
    k, v = k.copy(), v.copy()
    k[first + seen :], v[first + seen :] = 1000.0, 60_000.0
    out = again(problem, kv=[(k, v)])
    np.testing.assert_array_equal(out[:seen], problem.out[:seen])
    assert not np.array_equal(out[seen:], problem.out[seen:])


@every
def test_keys_before_the_window_count_exactly_nothing(
    gpu: Any, head_dim: int, kv: str, own: bool
) -> None:
    window, first, n = 40, 90, 80
    case = Case(head_dim=head_dim, kv=kv, chunks=((first, n),), window=window)
    problem = solved(gpu, case, own)
    ((k, v),) = problem.kv
    k, v = k.copy(), v.copy()
    gone = 100
    k[:gone], v[:gone] = 1000.0, 60_000.0
    out = again(problem, kv=[(k, v)])
    blind = gone + window - 1 - first  # the first row whose window begins behind them
    np.testing.assert_array_equal(out[blind:], problem.out[blind:])
    assert not np.array_equal(out[:blind], problem.out[:blind])


@every
def test_scores_far_below_zero_still_make_a_mean(
    gpu: Any, head_dim: int, kv: str, own: bool
) -> None:
    """The first tile sets the maximum; one that began at 0 would find no key at all."""
    case = Case(head_dim=head_dim, kv=kv, chunks=((0, 140),))
    problem = solved(gpu, case, own)
    ((k, v),) = problem.kv
    out = again(problem, q=np.full_like(problem.q, -LARGEST), kv=[(np.full_like(k, LARGEST), v)])
    assert error(out, problem.expected()) < 1e-3


@every
def test_rows_without_keys_give_zero(gpu: Any, head_dim: int, kv: str, own: bool) -> None:
    case = Case(head_dim=head_dim, kv=kv, lengths=(9,), chunks=((3, 5),), padding=(3, 70))
    problem = solved(gpu, case, own)
    padded = np.array(case.positions) < 0
    assert (problem.out[padded] == 0).all()
    assert error(problem.out, problem.expected()) < 1e-3


@every
def test_nothing_is_read_past_the_history(gpu: Any, head_dim: int, kv: str, own: bool) -> None:
    """Ends of histories at and beside the ends of pages and tiles.

    Behind its last key a page holds NaN (`Problem` put it there), and what the page table has
    behind the last page leads nowhere.
    """
    ends = (1, 2, 63, 64, 65, 127, 128, 129, 191, 193)
    case = Case(
        head_dim=head_dim,
        kv=kv,
        lengths=tuple(end - 1 for end in ends),
        chunks=tuple((max(0, end - 7), end - max(0, end - 7)) for end in ends),
    )
    problem = solved(gpu, case, own)
    assert np.isfinite(problem.out).all()
    assert error(problem.out, problem.expected()) < 5e-4
    table = np.where(problem.table < 0, FAR, problem.table)
    assert (table == FAR).any(axis=1).all()
    np.testing.assert_array_equal(attended(problem, table), problem.out)


@OWN
def test_pages_before_the_window_are_not_read(gpu: Any, own: bool) -> None:
    window = 2 * PAGE
    case = Case(head_dim=64, lengths=(700,), chunks=((600, 100),), window=window)
    problem = solved(gpu, case, own)
    table = problem.table.copy()
    table[0, : (700 + 1 - window) // PAGE] = FAR
    table[1, : (600 + 1 - window) // PAGE] = FAR
    np.testing.assert_array_equal(attended(problem, table), problem.out)

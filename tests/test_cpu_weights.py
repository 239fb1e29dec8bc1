"""Matrices are packed piece by piece, so that a model's file is never in memory twice."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from minfer.backends import Weight
from minfer.dtypes import WEIGHT_TYPES, DType
from minfer.graph import WeightSpec
from minfer.settings import Settings

weights = pytest.importorskip("minfer.backends.cpu.weights")
cpu = pytest.importorskip("minfer.backends.cpu")


@pytest.mark.parametrize("dtype", WEIGHT_TYPES, ids=str)
def test_pieces_make_the_whole(dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    n_in, n_out = 512, 100
    data = np.frombuffer(np.random.default_rng(1).bytes(dtype.nbytes(n_in * n_out)), np.uint8)
    weight = Weight("w", WeightSpec(dtype, (n_in, n_out)), data)
    device = cpu.create(Settings())._device
    found = []
    for piece_bytes in (1 << 24, 1):
        monkeypatch.setattr(weights, "PIECE_BYTES", piece_bytes)
        store = weights.WeightStore()
        nbytes = store.add_matrix(device, weight)
        address = store.matrix("w").address
        found.append(bytes((ctypes.c_uint8 * nbytes).from_address(address)))
    assert found[0] == found[1]

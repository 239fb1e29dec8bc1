"""A sequence computed by hand gives what scanning gives, can go back, and returns its room."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from tiny_models import expected, make_engine

from minfer.engine import Engine
from minfer.errors import BusyError, ContextFullError, RequestError

IDS = expected("llama")["ids"].tolist()[:24]


@pytest.fixture
def engine(backend_name: str) -> Iterator[Engine]:
    made = make_engine("llama", backend_name, max_sequences=2, prefill_rows=8, n_cells=256)
    yield made
    made.close()


@pytest.mark.parametrize("single", [False, True])
def test_it_computes_what_forward_computes(engine: Engine, single: bool) -> None:
    right = engine.forward(IDS, single=single)
    with engine.lane(len(IDS)) as lane:
        np.testing.assert_array_equal(lane.compute(IDS, single=single, wanted="all"), right)
        lane.rewind(5)
        assert len(lane) == 5
        again = lane.compute(IDS[5:], single=single)
        assert again.shape == (1, right.shape[1])
        np.testing.assert_array_equal(again[0], right[-1])


def test_hidden_states_come_before_the_head(engine: Engine) -> None:
    with engine.lane(len(IDS)) as lane:
        hidden = lane.compute(IDS, wanted="hidden")
    np.testing.assert_array_equal(hidden, engine.forward(IDS, hidden=True))


def test_its_room_is_given_back(engine: Engine) -> None:
    free = engine.pages
    with engine.lane(100), engine.lane(100):
        assert engine.pages[0] == free[0] - 4
        with pytest.raises(BusyError):
            engine.lane(1)
    assert engine.pages == free
    lane = engine.lane(3)
    lane.close()
    lane.close()
    assert engine.pages == free


def test_what_does_not_fit_is_refused(engine: Engine) -> None:
    with pytest.raises(ContextFullError):
        engine.lane(257)
    with engine.lane(4) as lane:
        with pytest.raises(ContextFullError):
            lane.compute([1, 2, 3, 4, 5])
        with pytest.raises(RequestError, match="outside of the vocabulary"):
            lane.compute([1, 1 << 30])
        with pytest.raises(RequestError, match="no tokens"):
            lane.compute([])
        assert len(lane) == 0

"""Lists and ranges of numbers on the command line of `minfer bench`."""

import pytest

from minfer.errors import RequestError
from minfer.measure import numbers, pairs


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("512", [512]),
        ("512,1024", [512, 1024]),
        ("1-4", [1, 2, 3, 4]),
        ("0-64+16", [0, 16, 32, 48, 64]),
        ("1-10*2", [1, 2, 4, 8]),
        ("0,128-256+64,7", [0, 128, 192, 256, 7]),
        ("3-3", [3]),
    ],
)
def test_numbers(text: str, found: list[int]) -> None:
    assert numbers(text, where="-p") == found


@pytest.mark.parametrize(
    "text", ["", "x", "-1", "1,", "4-1", "1-4+0", "1-4*1", "0-8*2", "1-4/2", "0-1000000", "1.5"]
)
def test_what_is_no_list_is_refused_with_its_name(text: str) -> None:
    with pytest.raises(RequestError) as caught:
        numbers(text, where="-p")
    assert caught.value.where == "-p"


def test_pairs() -> None:
    assert pairs("512,128", where="-pg") == [(512, 128)]
    assert pairs("512,128;64,8", where="-pg") == [(512, 128), (64, 8)]
    for text in ("512", "512,", "1,2,3", "a,b"):
        with pytest.raises(RequestError, match="is not a pair"):
            pairs(text, where="-pg")

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from encoder_pool.simulate.traffic import (
    BURST_EVERY_S,
    BURST_S,
    BURST_TIMES,
    MIX_SIDES,
    PHOTO_BOUNDS,
    Picture,
    Traffic,
)


def test_the_same_seed_draws_the_same_and_another_another() -> None:
    traffic = Traffic(requests_per_s=50, seconds=4)
    assert list(traffic.requests()) == list(traffic.requests())
    assert list(traffic.requests()) != list(traffic.model_copy(update={"seed": 2}).requests())


def test_another_rate_brings_the_same_pictures() -> None:
    few, many = (
        [arrival.pictures for arrival in Traffic(requests_per_s=rate, seconds=4).requests()]
        for rate in (5, 50)
    )
    assert many[: len(few)] == few


@pytest.mark.parametrize("arrivals", ["poisson", "bursts"])
def test_requests_come_at_the_mean_rate_in_order_of_time(arrivals: str) -> None:
    traffic = Traffic.model_validate({"arrivals": arrivals, "requests_per_s": 100, "seconds": 100})
    times = [arrival.at_s for arrival in traffic.requests()]
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] < 100
    assert len(times) == pytest.approx(100 * 100, rel=0.03)


def test_a_burst_brings_so_many_times_the_requests() -> None:
    traffic = Traffic(arrivals="bursts", requests_per_s=100, seconds=200)
    times = np.array([arrival.at_s for arrival in traffic.requests()])
    in_burst = times % BURST_EVERY_S >= BURST_EVERY_S - BURST_S
    burst_rate = in_burst.sum() / BURST_S
    calm_rate = (~in_burst).sum() / (BURST_EVERY_S - BURST_S)
    assert burst_rate / calm_rate == pytest.approx(BURST_TIMES, rel=0.1)


def pictures(sizes: str, images: int = 1) -> list[Picture]:
    traffic = Traffic(arrivals="closed", in_flight=1, sizes=sizes, images_per_request=images)
    return [picture for arrival in islice(traffic.requests(), 2000) for picture in arrival.pictures]


def test_photos_have_a_heavy_tail_within_bounds() -> None:
    megapixels = np.array([picture.width * picture.height / 1e6 for picture in pictures("photos")])
    least, most = PHOTO_BOUNDS
    assert least * 0.98 <= megapixels.min()
    assert megapixels.max() <= most * 1.02
    assert np.quantile(megapixels, 0.99) > 8 * np.median(megapixels)


def test_sides_of_a_mix_are_drawn_from_their_bounds_and_one_size_is_one_size() -> None:
    sides = {side for picture in pictures("mix") for side in picture[:2]}
    assert MIX_SIDES[0] <= min(sides) < max(sides) <= MIX_SIDES[1]
    assert set(pictures("640x480", images=3)) == {Picture(640, 480, 640 * 480 // 4)}


def test_a_trace_is_read_to_its_end_or_the_end_of_the_traffic(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("seconds,width,height,bytes\n0.5,10,20,\n1.5,30,40,999\n9,1,1,1\n")
    traffic = Traffic(arrivals="trace", trace=file, seconds=5)
    assert [(arrival.at_s, arrival.pictures) for arrival in traffic.requests()] == [
        (0.5, (Picture(10, 20, 50),)),
        (1.5, (Picture(30, 40, 999),)),
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("seconds,width\n1,2\n", "no column height"),
        ("seconds,width,height\n1,2,x\n", "line 2: invalid literal"),
        ("seconds,width,height\n1,2\n", "line 2: int"),
        ("seconds,width,height\n2,2,2\n1,2,2\n", r"line 3: 1\.0 s comes after 2\.0 s"),
        ("seconds,width,height\n1,0,2\n", "line 2: .*must be positive"),
        ("seconds,width,height\nnan,1,2\n", "line 2: .*must not be negative"),
    ],
)
def test_a_broken_trace_is_refused_with_its_line(text: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(ValueError, match=rf"trace\.csv.*{why}"):
        list(Traffic(arrivals="trace", trace=file).requests())


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({}, "poisson traffic needs requests_per_s"),
        ({"arrivals": "closed"}, "closed traffic needs in_flight"),
        ({"requests_per_s": 1, "sizes": "large"}, "'large' is no size"),
    ],
)
def test_traffic_that_cannot_be_drawn_is_refused(keys: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Traffic.model_validate(keys)

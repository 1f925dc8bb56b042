from __future__ import annotations

import io
import random
import subprocess
import sys
import time
from fractions import Fraction

import av
import numpy as np
import pytest

from encoder_pool.config import LimitsConfig
from encoder_pool.core import Media, Modality, Source
from encoder_pool.errors import PoolError, TooLarge, UndecodableMedia, UnsupportedMedia
from encoder_pool.media.smart_resize import Size
from encoder_pool.media.video import Clip, Pixels, Selection, decode_video
from tests.media.clips import film, gray_frames, hiding, shade, turned
from tests.odd_media import HTML, picture, sound, tone

LIMITS = LimitsConfig()


def every(clip: Clip) -> Selection:
    return Selection(np.arange(clip.frames), (*clip.size, 3), lambda pixels: pixels)


def decode(data: bytes, limits: LimitsConfig = LIMITS) -> tuple[Pixels, Source]:
    return decode_video(Media(Modality.VIDEO, data, "input[3]"), limits, every)


def clip_of(data: bytes, limits: LimitsConfig = LIMITS) -> Clip:
    """What the choosing of frames gets to see, the last time it is asked."""
    seen: list[Clip] = []

    def select(clip: Clip) -> Selection:
        seen.append(clip)
        return every(clip)

    decode_video(Media(Modality.VIDEO, data, "p"), limits, select)
    return seen[-1]


def refusal(data: bytes, limits: LimitsConfig = LIMITS) -> PoolError:
    with pytest.raises(PoolError) as caught:
        decode(data, limits)
    assert caught.value.param == "input[3]"
    return caught.value


def status_of(data: bytes) -> int:
    """200 if it is decoded, else the status of the error; nothing else may be raised."""
    try:
        frames, _ = decode(data)
    except PoolError as error:
        return error.status
    assert len(frames) > 0
    return 200


def shades(frames: Pixels) -> list[int]:
    """The gray of each frame, where it is not black."""
    return [round(float(frame[-8:, -8:].mean())) for frame in frames]


def assert_shades(frames: Pixels, indices: list[int]) -> None:
    for found, index in zip(shades(frames), indices, strict=True):
        assert abs(found - shade(index)) <= 4, index


FORMATS = [
    ("mp4", "libx264", "mp4"),
    ("mp4", "libx265", "mp4"),
    ("mp4", "mpeg4", "mp4"),
    ("mov", "libx264", "mp4"),
    ("mp4", "libsvtav1", "mp4"),
    ("webm", "libvpx", "webm"),
    ("webm", "libvpx-vp9", "webm"),
    ("matroska", "libx264", "matroska"),
]


@pytest.mark.parametrize(("container", "codec", "name"), FORMATS)
def test_every_format_gives_its_frames_back(container: str, codec: str, name: str) -> None:
    frames, source = decode(film(gray_frames(20), container, codec, 25))
    assert frames.dtype == np.uint8
    assert frames.shape == (20, 48, 64, 3)
    assert frames.flags.c_contiguous
    assert_shades(frames, list(range(20)))
    assert source == Source(name, width=64, height=48, seconds=0.8)


@pytest.mark.parametrize("rate", [30, 24, Fraction(30_000, 1001), 10, 60])
@pytest.mark.parametrize("container", ["mp4", "matroska"])
def test_the_frame_rate_is_exact_though_times_are_rounded(container: str, rate: int | Fraction) -> None:
    clip = clip_of(film(gray_frames(20), container, "mpeg4", rate))
    assert clip == Clip(20, float(rate), Size(48, 64))


def test_only_the_selected_frames_are_kept_and_resized() -> None:
    def select(clip: Clip) -> Selection:
        return Selection(np.array([0, 7, 19]), (4, 5, 3), lambda pixels: pixels[-4:, -5:])

    data = film(gray_frames(20))
    frames, _ = decode_video(Media(Modality.VIDEO, data, "p"), LIMITS, select)
    assert frames.shape == (3, 4, 5, 3)
    for frame, index in zip(frames, (0, 7, 19), strict=True):
        assert abs(frame.mean() - shade(index)) <= 4


@pytest.mark.parametrize(("quarters", "corner"), [(0, (0, 0)), (1, (0, -1)), (2, (-1, -1)), (3, (-1, 0))])
def test_a_film_that_was_held_sideways_is_turned_upright(quarters: int, corner: tuple[int, int]) -> None:
    data = turned(film(gray_frames(3)), quarters)
    frames, source = decode(data)
    height, width = (64, 48) if quarters % 2 else (48, 64)
    assert frames.shape == (3, height, width, 3)
    assert (source.width, source.height) == (width, height)
    corners = {at: frames[0][at].mean() for at in [(0, 0), (0, -1), (-1, 0), (-1, -1)]}
    assert min(corners, key=lambda at: corners[at]) == corner


def test_odd_sizes_are_decoded_whole() -> None:
    frames, _ = decode(film(gray_frames(2, 50, 66), codec="libx264"))
    assert frames.shape == (2, 50, 66, 3)


def test_a_single_frame_is_a_video() -> None:
    frames, source = decode(film(gray_frames(1), rate=25))
    assert len(frames) == 1
    assert source.seconds == pytest.approx(1 / 25)


def test_frames_that_are_not_shown_do_not_count() -> None:
    whole = film(gray_frames(12), "webm", "libvpx")
    clip = clip_of(hiding(whole, 5))
    assert clip.frames == 11
    frames, _ = decode(hiding(whole, 5))
    assert_shades(frames, [index for index in range(12) if index != 5])


def test_a_header_that_lies_about_the_duration_changes_nothing() -> None:
    data = film(gray_frames(20), rate=20)
    at = data.index(b"mvhd") + 4
    for claimed in (0, 1, 2**31, 2**32 - 1):
        lying = data[: at + 16] + claimed.to_bytes(4, "big") + data[at + 20 :]
        assert clip_of(lying) == Clip(20, 20.0, Size(48, 64))


def test_times_that_lie_fall_back_on_the_headers_rate() -> None:
    data = film(gray_frames(12), "matroska", rate=20, times=lambda index: 0)
    assert clip_of(data).frame_rate == 20.0


def test_seconds_are_those_of_the_frames_times() -> None:
    slow = film(gray_frames(10), "matroska", rate=10, times=lambda index: index * 300)
    error = refusal(slow, LimitsConfig(max_video_seconds=200))
    assert isinstance(error, TooLarge)
    assert error.code == "video_too_long"
    assert error.message == "the video has 300.0 seconds; the limit is 200 (limits.max_video_seconds)"
    assert decode(slow, LimitsConfig(max_video_seconds=300))[1].seconds == pytest.approx(300)


def test_too_many_frames_name_limit_value_and_setting() -> None:
    data = film(gray_frames(20))
    assert len(decode(data, LimitsConfig(max_video_frames=20))[0]) == 20
    error = refusal(data, LimitsConfig(max_video_frames=19))
    assert isinstance(error, TooLarge)
    assert error.message == "the video has at least 20 frames; the limit is 19 (limits.max_video_frames)"


def test_large_frames_are_refused_before_they_are_decoded() -> None:
    data = film(gray_frames(2))
    assert len(decode(data, LimitsConfig(max_frame_pixels=3072))[0]) == 2
    error = refusal(data, LimitsConfig(max_frame_pixels=3071))
    assert isinstance(error, TooLarge)
    assert "frames of 3072 pixels; the limit is 3071 (limits.max_frame_pixels)" in error.message


def test_the_work_of_decoding_is_bounded() -> None:
    data = film(gray_frames(10))
    assert len(decode(data, LimitsConfig(max_video_pixels=30_720))[0]) == 10
    error = refusal(data, LimitsConfig(max_video_pixels=30_719))
    assert isinstance(error, TooLarge)
    assert "30720 pixels in all its frames; the limit is 30719 (limits.max_video_pixels)" in error.message


@pytest.mark.parametrize("limit", ["max_video_pixels", "max_video_frames", "max_frame_pixels"])
def test_what_is_too_large_by_its_packets_is_never_prepared(limit: str) -> None:
    def select(clip: Clip) -> Selection:
        raise AssertionError

    with pytest.raises(TooLarge):
        decode_video(
            Media(Modality.VIDEO, film(gray_frames(10)), "p"), LIMITS.model_copy(update={limit: 9}), select
        )


def test_too_many_bytes_are_refused() -> None:
    data = film(gray_frames(2))
    assert "limits.max_item_bytes" in refusal(data, LimitsConfig(max_item_bytes=len(data) - 1)).message


def test_a_header_of_small_frames_does_not_let_large_ones_through() -> None:
    """The stream claims 48 x 64 in its sample entry; what is coded has more pixels than the limit."""
    data = film(gray_frames(3, 480, 640), codec="libx264")
    at = data.index(b"avc1", data.index(b"stsd")) + 28
    lying = data[:at] + (64).to_bytes(2, "big") + (48).to_bytes(2, "big") + data[at + 4 :]
    error = refusal(lying, LimitsConfig(max_frame_pixels=100_000))
    assert isinstance(error, TooLarge | UndecodableMedia)


def test_frames_that_change_their_size_are_refused() -> None:
    one, two = film(gray_frames(3), "mp4", "libx264"), film(gray_frames(3, 64, 80), "mp4", "libx264")
    error = refusal(joined(one, two))
    assert isinstance(error, UndecodableMedia)
    assert "size of the frames changes" in error.message


def joined(*mp4s: bytes) -> bytes:
    """The coded frames of several H.264 films in one Matroska file, each with its own parameter sets."""
    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as output:
        stream = output.add_stream("libx264", rate=30)
        assert isinstance(stream, av.VideoStream)
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        count = 0
        for mp4 in mp4s:
            with av.open(io.BytesIO(mp4), "r") as container:
                source = container.streams.video[0]
                to_annex_b = av.BitStreamFilterContext("h264_mp4toannexb", source)
                for packet in container.demux(source):
                    for plain in to_annex_b.filter(packet if packet.size else None):
                        plain.stream = stream
                        plain.time_base = Fraction(1, 30)
                        plain.pts = plain.dts = count
                        count += 1
                        output.mux(plain)
    return file.getvalue()


def test_sound_alone_is_not_a_video() -> None:
    for container, codec, rate in (("mp4", "aac", 44_100), ("webm", "libopus", 48_000)):
        error = refusal(sound(container, codec, rate, tone(0.3, rate)))
        assert isinstance(error, UndecodableMedia)
        assert error.code == "no_video"


def test_a_file_without_frames_is_not_a_video() -> None:
    error = refusal(film(gray_frames(0), "matroska", "mpeg4"))
    assert isinstance(error, UndecodableMedia)


def test_other_media_are_named() -> None:
    error = refusal(picture("GIF"))
    assert isinstance(error, UnsupportedMedia)
    assert error.code == "wrong_modality"
    assert "mp4, webm, matroska" in error.message
    assert "html is not supported" in refusal(HTML).message
    assert refusal(b"").code == "empty_media"


def test_an_unusual_codec_is_refused_by_name_of_the_usual_ones() -> None:
    error = refusal(film(gray_frames(2), "matroska", "ffv1"))
    assert isinstance(error, UnsupportedMedia)
    assert "h264, hevc" in error.message


def test_what_select_raises_is_answered_with_the_place() -> None:
    def select(clip: Clip) -> Selection:
        raise TooLarge("too large for the tower")

    with pytest.raises(TooLarge) as caught:
        decode_video(Media(Modality.VIDEO, film(gray_frames(2)), "input[3]"), LIMITS, select)
    assert caught.value.param == "input[3]"


@pytest.mark.parametrize(("container", "codec"), [("mp4", "libx264"), ("webm", "libvpx")])
def test_truncated_films_are_refused_or_give_what_is_there(container: str, codec: str) -> None:
    data = film(gray_frames(20), container, codec)
    assert status_of(data[: len(data) // 8]) != 200
    for keep in range(0, len(data), max(1, len(data) // 25)):
        assert status_of(data[:keep]) in (200, 415, 422)


@pytest.mark.parametrize(
    ("container", "codec"), [("mp4", "libx264"), ("webm", "libvpx"), ("matroska", "mpeg4")]
)
def test_damaged_films_never_raise_anything_but_our_errors(container: str, codec: str) -> None:
    data = film(gray_frames(10), container, codec)
    rng = random.Random(7)
    started = time.monotonic()
    for _ in range(60):
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 12)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        assert status_of(bytes(damaged)) in (200, 413, 415, 422)
    assert time.monotonic() - started < 15


MEASURE = """
import resource, time
from tests.media.clips import claiming, film, gray_frames
from tests.media.test_video import status_of

small = film(gray_frames(3), codec="libx264")
status_of(small)
for data in (claiming(small, 80_000_000), claiming(small, 3_000_000), claiming(small, 2**32 - 1)):
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    status = status_of(data)
    print(status, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, time.monotonic() - started)
"""


def test_a_small_file_cannot_take_much_memory_or_time() -> None:
    # In a process of its own, because the peak of a process never falls.
    done = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True)
    for line in done.stdout.splitlines():
        status, kilobytes, seconds = line.split()
        assert int(status) == 422
        assert float(kilobytes) < 150_000
        assert float(seconds) < 2


def test_ffmpeg_writes_nothing_to_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    whole = film(gray_frames(10), codec="libx264")
    capfd.readouterr()
    for cut in (len(whole) // 3, len(whole) // 2):
        status_of(whole[:cut] + b"\xaa" * 300 + whole[cut + 300 :])
    assert capfd.readouterr() == ("", "")


def test_an_mp4_with_a_compressed_header_is_refused() -> None:
    assert isinstance(refusal(film(gray_frames(2)) + b"dcomzlib"), UnsupportedMedia)

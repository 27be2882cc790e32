"""The data profiler: nested functions, generators, exceptions, and real processor time."""

import time

import pytest

from benchmarks.data_profiler import (
    FUNCTIONS,
    NETWORK_FUNCTIONS,
    PARTS,
    PartTimer,
    find_code,
    profile_clips,
    time_functions,
)
from utils.video.reader import VideoError

HERE = __name__
NOW = [0.0]


def spend(seconds: float) -> None:
    NOW[0] += seconds


def convert(seconds: float) -> None:
    spend(seconds)


def decode() -> None:
    spend(1)
    convert(10)
    spend(2)
    convert(20)


def read(seconds: float, keep: bool = True) -> None:
    spend(seconds)


def fail() -> None:
    spend(8)
    raise KeyError


def generate(count: int):
    for _ in range(count):
        read(1)
        spend(2)
        yield count
    spend(4)


@pytest.fixture
def timer():
    return PartTimer(lambda: NOW[0])


def list_spent(timer: PartTimer) -> dict[str, float]:
    return {part: seconds for part, seconds in timer.seconds.items() if seconds}


def test_time_inside_a_part_counts_only_for_the_inner_part(timer):
    with time_functions({f"{HERE}:decode": "decode", f"{HERE}:convert": "convert"}, timer):
        with timer.inside("other"):
            decode()
            spend(100)
        decode()  # outside any part
    decode()
    assert list_spent(timer) == {"decode": 3, "convert": 30, "other": 100}


def test_a_generator_is_timed_only_while_it_computes_an_item(timer):
    table = {f"{HERE}:generate": "decode", f"{HERE}:read": "seek"}
    with time_functions(table, timer), timer.inside("copy"):
        for count in generate(3):
            assert count == 3
            spend(100)
        next(generate(1))  # left unfinished
    assert list_spent(timer) == {"decode": 3 * 2 + 4 + 2, "seek": 4, "copy": 300}


def test_a_skipped_frame_is_seeking_and_an_exception_leaves_its_part(timer):
    table = {f"{HERE}:read": "decode", f"{HERE}:fail": "open"}
    with time_functions(table, timer), timer.inside("other"):
        read(1, keep=False)
        read(2, keep=True)
        with pytest.raises(KeyError):
            fail()
        spend(16)
    assert list_spent(timer) == {"seek": 1, "decode": 2, "open": 8, "other": 16}


@pytest.mark.parametrize(
    "table", [FUNCTIONS, *NETWORK_FUNCTIONS.values()], ids=["all", *NETWORK_FUNCTIONS]
)
def test_every_function_of_the_tables_exists(table):
    assert set(table.values()) <= set(PARTS)
    for name in table:
        assert find_code(name).co_name == name.rpartition(":")[2].rpartition(".")[2]


class Clips:
    """Twelve clips, 4 ms to decode and 4 ms to resize; the first cannot be read."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> None:
        self.decode(index)
        self.resize()

    def decode(self, index: int) -> None:
        if index == 0:
            raise VideoError("a.mp4", "none", "cut short")
        burn(0.004)

    def resize(self) -> None:
        burn(0.004)


def burn(seconds: float) -> None:
    began = time.process_time()
    while time.process_time() - began < seconds:
        pass


def test_the_times_of_the_parts_add_up_to_the_clip():
    functions = {f"{HERE}:Clips.decode": "decode", f"{HERE}:Clips.resize": "geometry"}
    floor, whole, parts = profile_clips(Clips(), functions, 20)
    assert sum(parts.values()) == pytest.approx(whole, rel=0.2)
    assert min(parts.values()) >= 0
    assert floor == pytest.approx(4, rel=0.2)
    assert parts["decode"] == pytest.approx(parts["geometry"], rel=0.2)


def test_a_list_without_readable_clips_is_a_user_error():
    clips = Clips()
    clips.decode = lambda index: Clips.decode(clips, 0)
    with pytest.raises(ValueError, match="data.root: no video can be read"):
        profile_clips(clips, {}, 20)

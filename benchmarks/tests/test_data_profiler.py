"""Time by parts: what is inside another part, generators, names, and what is left as it was."""

import time

import pytest

from benchmarks.benchmark import OWN
from benchmarks.data_profiler import FUNCTIONS, PARTS, Account, find, take_apart, timed, watched
from tsm import transforms
from utils.video import decoders
from utils.video.reader import VideoError

HERE = __name__
NOW = [0.0]


def passes(seconds: float) -> None:
    NOW[0] += seconds


def shift(seconds: float = 0, keep: bool = True) -> None:
    passes(seconds)


def fails() -> None:
    passes(8)
    raise KeyError


def steps(count: int):
    for _ in range(count):
        shift(1)
        passes(2)
        yield count
    passes(4)


@pytest.fixture
def account():
    return Account(lambda: NOW[0])


def test_what_is_inside_a_part_counts_there_alone(account):
    inner = timed(shift, "convert", account)

    def work():
        passes(1)
        inner(10)
        passes(2)
        inner(20)

    with account.inside("other"):
        timed(work, "decode", account)()
        passes(100)
    passes(1000)  # nobody asked
    spent = {part: seconds for part, seconds in account.seconds.items() if seconds}
    assert spent == {"decode": 3, "convert": 30, "other": 100}


def test_of_a_generator_its_steps_count_and_not_what_is_done_between(account):
    table = {f"{HERE}:steps": "decode", f"{HERE}:shift": "seek"}
    with watched(table, account), account.inside("copy"):
        for count in steps(3):
            assert count == 3
            passes(100)
        next(steps(1))  # left unfinished
    assert (account.seconds["decode"], account.seconds["seek"]) == (3 * 2 + 4 + 2, 4)
    assert account.seconds["copy"] == 300


def test_a_frame_passed_over_is_seeking_and_an_error_leaves_its_part(account):
    read = timed(shift, "decode", account)
    read(5)  # inside nothing
    with account.inside("other"):
        read(1, keep=False)
        read(2, keep=True)
        with pytest.raises(KeyError):
            timed(fails, "open", account)()
        passes(16)
    assert [account.seconds[part] for part in ("seek", "decode", "open", "other")] == [1, 2, 8, 16]


def test_every_name_of_a_function_is_watched_and_given_back(account):
    whole = decoders.short_side_size
    with watched({"utils.video.decoders:short_side_size": "open"}, account):
        assert transforms.short_side_size is decoders.short_side_size is not whole
    assert transforms.short_side_size is decoders.short_side_size is whole


@pytest.mark.parametrize("table", [FUNCTIONS, *OWN.values()], ids=["all", *OWN])
def test_every_function_of_the_tables_is_there(table):
    assert set(table.values()) <= set(PARTS)
    for name in table:
        assert callable(find(name)[2])


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


def test_the_parts_of_a_clip_add_up_to_it():
    own = {f"{HERE}:Clips.decode": "decode", f"{HERE}:Clips.resize": "geometry"}
    floor, whole, parts = take_apart(Clips(), own, 20)
    assert sum(parts.values()) == pytest.approx(whole, rel=0.2)
    assert min(parts.values()) >= 0
    assert floor == pytest.approx(4, rel=0.2)
    assert parts["decode"] == pytest.approx(parts["geometry"], rel=0.2)


def test_no_clip_at_all_is_told():
    clips = Clips()
    clips.decode = lambda index: Clips.decode(clips, 0)
    with pytest.raises(ValueError, match="data.root: no video can be read"):
        take_apart(clips, {}, 20)

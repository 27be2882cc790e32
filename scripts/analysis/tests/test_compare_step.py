"""Records that `compare_step.py` compares with."""

from io import BytesIO

import numpy as np
import pytest

from scripts.analysis.compare_step import load_record

ARRAYS = {"data/clip": np.zeros((2, 3)), "data/target": np.zeros(2), "loss/loss": np.ones(1)}


def test_what_is_no_record_is_refused_in_one_line(tmp_path):
    whole = tmp_path / "whole.npz"
    bad = tmp_path / "bad.npz"
    np.savez(whole, **ARRAYS)
    assert set(load_record(whole)) == set(ARRAYS)
    data = whole.read_bytes()
    flipped = data[:80] + bytes([data[80] ^ 255]) + data[81:]
    array = BytesIO()
    archive = BytesIO()
    np.save(array, np.zeros(3))
    np.savez(archive, x=np.zeros(3))
    others = array.getvalue(), archive.getvalue()
    for content in (data[:-40], data[: len(data) // 2], b"PK", flipped, b"", b"text", *others):
        bad.write_bytes(content)
        words = r"^--against: .*bad.npz is not a record: .*$"
        with pytest.raises(ValueError, match=words) as caught:
            load_record(bad)
        assert "\n" not in str(caught.value)

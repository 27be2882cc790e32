"""The average of checkpoints equals numpy's; files of different networks are refused."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor

from scripts.analysis.average_checkpoints import average, main
from utils.weights import checkpoint, checkpoint_file


def write(path, **arrays):
    """Writes a checkpoint of these arrays."""
    checkpoint.save(path, {name: Parameter(Tensor(v), name=name) for name, v in arrays.items()})
    return path


@pytest.fixture
def files(tmp_path):
    rng = np.random.RandomState(0)
    return [
        write(
            tmp_path / f"epoch_{k}.ckpt",
            weight=rng.randn(3, 4).astype(np.float32),
            half=rng.randn(5).astype(np.float16),
            count=np.array([k], np.int32),
        )
        for k in range(3)
    ]


def test_the_average_equals_numpys(files, tmp_path, capsys):
    target = tmp_path / "new" / "mean.ckpt"
    (tmp_path / "class_folders.txt").write_text("cat\ndog\n")
    main(files, target=target, weights=[1.0, 1.0, 2.0])
    contents = [checkpoint_file.read(file) for file in files]
    written = checkpoint_file.read(target)
    for name, dtype in (("weight", np.float32), ("half", np.float16)):
        values = np.array([content[name] for content in contents], np.float64)
        expected = np.average(values, axis=0, weights=[1, 1, 2]).astype(dtype)
        np.testing.assert_array_equal(written[name], expected)
    assert written["count"] == 2, "integers are those of the last file"
    assert (target.parent / "class_folders.txt").read_text() == "cat\ndog\n"
    assert '"files": 3' in capsys.readouterr().out
    assert set(ms.load_checkpoint(str(target))) == {"weight", "half", "count"}


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        (
            {"weight": np.zeros((4, 3), np.float32)},
            "other.ckpt is of another network than .*weight",
        ),
        ({"weight": np.full((3, 4), np.nan, np.float32)}, "weight is NaN or infinite"),
    ],
)
def test_a_file_that_does_not_fit_is_named(arrays, words, files, tmp_path):
    first = checkpoint_file.read(files[0])
    other = write(tmp_path / "other.ckpt", **{**first, **arrays})
    with pytest.raises(ValueError, match=words):
        average([files[0], other], np.array([0.5, 0.5]))


def test_an_average_beyond_its_type_is_refused(tmp_path):
    values = np.full(2, 65_504, np.float16)
    files = [write(tmp_path / f"{k}.ckpt", half=values) for k in range(2)]
    with pytest.raises(ValueError, match="the average of half is beyond its type float16"):
        average(files, np.array([0.6, 0.6]))


def test_a_single_file_and_wrong_weights_are_refused(files, tmp_path):
    with pytest.raises(ValueError, match="at least two"):
        main(files[:1], target=tmp_path / "x.ckpt")
    with pytest.raises(ValueError, match="--weights: give 3 numbers"):
        main(files, target=tmp_path / "x.ckpt", weights=[1.0])
    assert not (tmp_path / "x.ckpt").exists()

"""`scripts/data/pack_videos.py`, and training and evaluation from its packs."""

import json
import shutil
import signal
import time
from pathlib import Path

import mindspore.dataset as ds
import numpy as np
import pytest

from mvit_multi.network import NETWORK as MVIT
from scripts.data.packing.pack import LOCATIONS_FILE
from scripts.data.packing.shard_writer import choose_page_size
from scripts.data.synthetic.motion_videos import draw_sets
from tests.helpers import (
    assert_close_weights,
    find_smoke_yaml,
    load_smoke_config,
    read_result,
    run_json,
    run_script,
    start_script,
)
from tsm.network import NETWORK as TSM
from utils.data.packed.format import add_checksum
from utils.networks import Network
from utils.runtime import Runtime
from x3d.network import NETWORK as X3D

SCRIPT = "scripts/data/pack_videos.py"


def build_arguments(root: Path, out: Path, *more: str, network_name: str = "tsm") -> list:
    """A command that packs, without its `python`."""
    yaml = find_smoke_yaml(network_name)
    return [SCRIPT, "--config_path", yaml, f"--data.root={root}", "--out", out, *more]


@pytest.fixture
def pack_here(run_here):
    """Packs in this process."""
    return lambda *arguments, **network: run_here(*build_arguments(*arguments, **network))


@pytest.fixture(scope="module")
def pack(data_root, tmp_path_factory) -> Path:
    """A pack of the synthetic lists in four shards, at a quality that keeps all results."""
    out = tmp_path_factory.mktemp("pack")
    result = run_json(*build_arguments(data_root, out, "--quality", "1", "--shards", "4"))
    assert (result["videos"], result["bad"], result["shards"], result["packed"]) == (32, 0, 8, 32)
    assert result["psnr"]["median"] >= result["psnr"]["lowest"] > 40
    return out


def test_mindspore_reads_the_shards_as_mindrecord(pack, data_root):
    files = [str(file) for file in sorted((pack / "train.txt").glob("*.mindrecord"))]
    columns = ["path", "label", "frames", "video"]
    rows = ds.MindDataset(files, columns_list=columns, shuffle=False)
    listed = [line.rsplit(" ", 1) for line in (data_root / "train.txt").read_text().splitlines()]
    result = {}
    for path, label, frames, video in rows.create_tuple_iterator(output_numpy=True, num_epochs=1):
        result[str(path)] = int(label)
        assert frames > 0
        assert video.tobytes()[:4] == b"zoo2"
    assert result == {str(data_root / path): int(label) for path, label in listed}


def test_a_page_holds_the_largest_video_of_a_list():
    assert choose_page_size([1000]) == choose_page_size([4_000_000]) == 2**25
    assert choose_page_size([1000, 5_000_000]) == 2**26
    assert choose_page_size([2**40]) == 2**28


def test_an_interrupted_packing_continues_to_the_same_result(data_root, pack_here, tmp_path):
    options = ["--shards", "12", "--workers", "1"]
    expected = read_result(pack_here(data_root, tmp_path / "whole", *options))
    process = start_script(*build_arguments(data_root, tmp_path / "cut", *options))
    folder = tmp_path / "cut" / "train.txt"
    deadline = time.monotonic() + 600
    while not list(folder.glob("*.mindrecord.json")):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (folder / "pack.json").exists(), "killed before its end"
    config = load_smoke_config("tsm", f"data.packed={tmp_path / 'cut'}")
    with pytest.raises(ValueError, match=r"data\.packed: .*train\.txt was not packed to its end"):
        TSM.read_records(config, "train")
    resumed = read_result(pack_here(data_root, tmp_path / "cut", *options))
    assert 0 < resumed.pop("packed") < expected.pop("packed") == 32
    for key in ("videos", "bytes", "shards", "psnr"):
        assert resumed[key] == expected[key]
    for name in ("train.txt", "test.txt"):
        paths = [tmp_path / run / name / LOCATIONS_FILE for run in ("cut", "whole")]
        np.testing.assert_array_equal(*map(np.load, paths))
    assert not list((tmp_path / "cut").rglob("unfinished"))


def test_damage_is_detected_named_and_repaired(data_root, pack_here, tmp_path):
    """A run refuses a truncated shard; --verify detects a changed byte."""
    options = ["--shards", "3"]
    read_result(pack_here(data_root, tmp_path, *options))
    verified = read_result(pack_here(data_root, tmp_path, "--verify"))
    assert (verified["videos"], verified["compared"]) == (32, 24)
    assert verified["psnr"]["lowest"] > 30
    shards = sorted((tmp_path / "train.txt").glob("*.mindrecord"))
    data = bytearray(shards[1].read_bytes())
    locations = np.load(tmp_path / "train.txt" / LOCATIONS_FILE)
    data[int(locations[locations["shard"] == 1]["offset"][0]) + 3000] ^= 1
    shards[1].write_bytes(data)
    result = pack_here(data_root, tmp_path, "--verify")
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith("error: ")
    assert f"{shards[1]}: check sums differ" in result.stderr
    shards[1].write_bytes(data[:-100])
    settings = [f"data.packed={tmp_path}", f"data.root={data_root}"]
    config = load_smoke_config("tsm", *settings)
    words = f"{shards[1]} has {len(data) - 100} of {len(data)} bytes"
    with pytest.raises(ValueError, match=words):
        TSM.read_records(config, "train")
    repaired = read_result(pack_here(data_root, tmp_path, *options))
    assert repaired["packed"] == 8, "one shard of three"
    assert len(TSM.read_records(config, "train")) == 24


def test_a_pack_of_an_earlier_version_is_read_or_refused(pack, tmp_path):
    """The file of locations had another name; JPEG files and no checksums are refused."""
    folder = tmp_path / "train.txt"
    shutil.copytree(pack / "train.txt", folder)
    (folder / LOCATIONS_FILE).rename(folder / "places.npy")
    index = json.loads((folder / "pack.json").read_text())
    index["places"] = index.pop("locations")
    config = load_smoke_config("tsm", f"data.packed={tmp_path}", f"data.root={tmp_path}")
    (folder / "pack.json").write_text(json.dumps(add_checksum(index)))
    assert len(TSM.read_records(config, "train")) == 24
    (folder / "pack.json").write_text(json.dumps(add_checksum({**index, "codec": "jpeg"})))
    with pytest.raises(ValueError, match=r"train.txt holds JPEG files.*extract_frames\.py and set"):
        TSM.read_records(config, "train")
    del index["checksum"], index["places"]
    (folder / "pack.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"earlier version without checksums; .*pack_videos\.py"):
        TSM.read_records(config, "train")


def test_unreadable_videos_are_left_out(data_root, pack_here, run_here, tmp_path):
    """A scan reports a missing video; another video is truncated after the scan."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "videos").symlink_to(data_root / "videos")
    whole = next((data_root / "videos").rglob("*.mp4")).read_bytes()
    (root / "cut.mp4").write_bytes(whole)
    for name in ("train.txt", "test.txt"):
        (root / name).write_text((data_root / "test.txt").read_text() + "cut.mp4 3\nnone.mp4 1\n")
    scan = ["--config_path", find_smoke_yaml("tsm"), f"--data.root={root}"]
    read_result(run_here("scripts/data/check_videos.py", *scan, "--out", tmp_path / "scan"))
    (root / "cut.mp4").write_bytes(whole[:3000])
    out = tmp_path / "out"
    result = read_result(pack_here(root, out, "--bad", tmp_path / "scan"))
    assert (result["videos"], result["bad"], result["packed"]) == (16, 4, 18)
    rows = (out / "train.txt" / "bad.tsv").read_text().splitlines()
    assert [row.split("\t")[:2] for row in rows] == [["9", "truncated"], ["10", "missing"]]
    config = load_smoke_config("tsm", f"data.packed={out}", f"data.root={root}")
    assert len(TSM.read_records(config, "train")) == 8
    (root / "train.txt").write_text((data_root / "test.txt").read_text())
    with pytest.raises(ValueError, match=r"is not the list that .* was packed from"):
        TSM.read_records(config, "train")


def test_training_and_evaluation_need_only_the_pack(pack, tiny_args, tiny_ckpt, run_here, tmp_path):
    """The scores are the same without videos and lists. The training is for one class more."""
    arguments = [a for a in tiny_args if not str(a).startswith("--data.root")]
    arguments += [f"--data.root={tmp_path / 'nothing'}", f"--data.packed={pack}"]
    checkpoint = f"--checkpoint_path={tiny_ckpt}"
    results = read_result(run_here("tsm/eval.py", *arguments, checkpoint))
    expected = read_result(run_here("tsm/eval.py", *tiny_args, checkpoint))
    for key in ("top1", "top5", "videos"):
        assert results[key] == expected[key]
    out = f"--run.out={tmp_path / 'run'}"
    short = ["--train.epochs=1", "--train.warmup_epochs=0", "--model.num_classes=9"]
    begin = [f"--train.pretrained={tiny_ckpt}", "--train.new_head=true"]
    result = run_json("tsm/train.py", *arguments, out, *short, *begin)
    assert (result["epochs"], result["steps"]) == (1, 6)


@pytest.mark.slow
def test_two_workers_on_a_pack_equal_one_with_twice_the_batch(pack, tiny_args, pair_args, tmp_path):
    """Each rank reads two of four shards."""
    settings = [f"--data.packed={pack}", f"--data.root={tmp_path / 'nothing'}"]
    out = [f"--run.out={tmp_path / name}" for name in ("pair", "alone")]
    frozen = "--train.batch_norm=frozen"
    script = "scripts/run_distribute_train.sh"
    done = run_script(script, "tsm", "2", *pair_args[1:], *settings, out[0])
    alone = run_json("tsm/train.py", *tiny_args, *settings, frozen, out[1])
    assert "ranks share" not in done.stderr
    assert_close_weights(alone["checkpoint"], read_result(done)["checkpoint"])


def read_rows(network: Network, config, count: int = 4) -> dict[tuple, tuple]:
    """{(sample, epoch): row} of the first `count` samples of a run; 0 is a whole epoch."""
    records = network.read_records(config, "train")
    sampler = network.build_train_sampler(config, records, Runtime())
    source = network.build_train_rows(config, records, sampler, epochs=1, skip=0)
    return {sampler.sample_at(k): source[k] for k in range(count or sampler.samples_per_epoch)}


@pytest.mark.parametrize("network", [TSM, X3D], ids=["tsm", "x3d"])
def test_a_sample_has_the_same_crop_from_the_pack(network, pack, data_root, tmp_path):
    """Frames, crop and flip depend on seed, epoch and sample only."""
    lists = ["data.train_list=train.txt", "data.test_list=test.txt", f"data.root={data_root}"]
    plain = load_smoke_config(network.name, *lists, "data.batch=4")
    packed = load_smoke_config(network.name, *lists, "data.batch=4", f"data.packed={pack}")
    expected = read_rows(network, plain, 0)
    result = read_rows(network, packed)
    for key, (clip, label) in result.items():
        assert label == expected[key][1]
        assert np.abs(clip.astype(int) - expected[key][0]).mean() < 3
    by_label = []
    for config in (plain, packed):
        source = network.build_eval_rows(config, Runtime())[0]
        rows = map(source.__getitem__, range(8))
        by_label.append({int(label): clips for clips, label, _ in rows})
    for label, clips in by_label[0].items():
        assert np.abs(clips.astype(int) - by_label[1][label]).mean() < 3


def test_several_data_sets_are_packed_and_mixed(pack_here, tmp_path):
    root = tmp_path / "sets"
    draw_sets(root, train_per_motion=2, test_per_motion=1, seed=1)
    done = pack_here(root, tmp_path / "packed", "--quality", "1", network_name="mvit_multi")
    settings = [f"data.root={tmp_path / 'none'}", f"data.packed={tmp_path / 'packed'}"]
    settings += ["data.batch=2", "data.dataset_repeats=2", "data.rand_augment="]
    packed = load_smoke_config("mvit_multi", *settings)
    plain = load_smoke_config("mvit_multi", f"data.root={root}", *settings[2:])
    expected = read_rows(MVIT, plain, 0)
    result = read_rows(MVIT, packed)
    assert read_result(done)["bad"] == 0
    for key, (clip, target) in result.items():
        np.testing.assert_array_equal(target[:, :2], expected[key][1][:, :2])
        assert np.abs(clip.astype(int) - expected[key][0]).mean() < 3
    assert json.loads((tmp_path / "packed" / "eight" / "train.csv" / "pack.json").read_text())

"""Lists made from the annotation files of public data sets."""

import numpy as np
import pytest
from scipy.io import savemat

from scripts.data.prepare.public_annotations import (
    find_videos,
    match_videos,
    read_public_annotations,
)
from tests.helpers import assert_one_line_error, read_result
from utils.data.annotation_file import AnnotationFile, read_annotations

KINETICS = """label,youtube_id,time_start,time_end,split
playing squash or racquetball,-0A2-mhWuYk,19,29,train
abseiling,0347ZoDXyP0,95,105,train
abseiling,gone,1,11,train
"""
KINETICS_VAL = """label,youtube_id,time_start,time_end,split
abseiling,__7xYvk5ZzA,2,12,validate
abseiling,test,2,12,test
"""
# {data set: ({annotation: text}, video files, classes, train, val, (missing, others))}
CASES = {
    "kinetics": (
        {"train.csv": KINETICS, "validate.csv": KINETICS_VAL},
        [
            "train/playing squash or racquetball/-0A2-mhWuYk_000019_000029.mp4",
            "0347ZoDXyP0_000095_000105.mkv",
            "val/__7xYvk5ZzA_000002_000012.mp4",
            "test_000002_000012.mp4",
        ],
        ["abseiling", "playing squash or racquetball"],
        [
            "train/playing squash or racquetball/-0A2-mhWuYk_000019_000029.mp4 1",
            "0347ZoDXyP0_000095_000105.mkv 0",
        ],
        ["val/__7xYvk5ZzA_000002_000012.mp4 0"],
        (1, 1),
    ),
    "sthv2": (
        {
            "something-something-v2-labels.json": """{
                "Tilting something up": "0", "Holding something next to something": "1"}""",
            "something-something-v2-train.json": """[{
                "id": "78687", "label": "holding potato next to vicks vaporub bottle",
                "template": "Holding [something] next to [something]",
                "placeholders": ["potato", "vicks vaporub bottle"]}]""",
            "something-something-v2-validation.json": """[{
                "id": "74225", "template": "Tilting [something] up", "placeholders": ["a pen"]}]""",
            "something-something-v2-test.json": '[{"id": "1420"}]',
        },
        ["78687.webm", "20bn-something-something-v2/74225.webm", "1420.webm"],
        ["Tilting something up", "Holding something next to something"],
        ["78687.webm 1"],
        ["20bn-something-something-v2/74225.webm 0"],
        (0, 1),
    ),
    "sthv1": (
        {
            "something-something-v1-labels.csv": "Turning something\nFolding something\n",
            "something-something-v1-train.csv": "100218;Turning something\n24413;Folding something",
            "something-something-v1-validation.csv": "105723;Folding something\n",
            "something-something-v1-test.csv": "92451\n",
        },
        ["100218/00001.jpg", "100218/00002.jpg", "105723/00001.jpg", "24413/00002.jpg"],
        ["Folding something", "Turning something"],
        ["100218 2 1"],
        ["105723 1 0"],
        (1, 0),
    ),
    "moments": (
        {
            "moments_categories.txt": "clapping,1\nadult+female+singing,0\n",
            "trainingSet.csv": "clapping/flickr-0-3-9-1_4.mp4,clapping,3,1\n"
            "adult+female+singing/flickr-0-3-9-1_4.mp4,adult+female+singing,2,0\n",
            "validationSet.csv": "clapping/yt-a.b_7.mp4,clapping,5,0\n",
        },
        [
            "training/clapping/flickr-0-3-9-1_4.mp4",
            "training/adult+female+singing/flickr-0-3-9-1_4.mp4",
            "validation/clapping/yt-a.b_7.mp4",
        ],
        ["adult+female+singing", "clapping"],
        [
            "training/clapping/flickr-0-3-9-1_4.mp4 1",
            "training/adult+female+singing/flickr-0-3-9-1_4.mp4 0",
        ],
        ["validation/clapping/yt-a.b_7.mp4 1"],
        (0, 0),
    ),
    "ucf101": (
        {
            "classInd.txt": "1 ApplyEyeMakeup\r\n2 HandstandPushups\r\n",
            "trainlist01.txt": "ApplyEyeMakeup/v_ApplyEyeMakeup_g08_c01.avi 1\r\n"
            "HandstandPushups/v_HandStandPushups_g08_c01.avi 2\r\n",
            "testlist01.txt": "ApplyEyeMakeup/v_ApplyEyeMakeup_g01_c01.avi\r\n",
        },
        [
            "UCF-101/ApplyEyeMakeup/v_ApplyEyeMakeup_g08_c01.avi",
            "UCF-101/HandstandPushups/v_HandStandPushups_g08_c01.avi",
            "UCF-101/ApplyEyeMakeup/v_ApplyEyeMakeup_g01_c01.mp4",
        ],
        ["ApplyEyeMakeup", "HandstandPushups"],
        [
            "UCF-101/ApplyEyeMakeup/v_ApplyEyeMakeup_g08_c01.avi 0",
            "UCF-101/HandstandPushups/v_HandStandPushups_g08_c01.avi 1",
        ],
        ["UCF-101/ApplyEyeMakeup/v_ApplyEyeMakeup_g01_c01.mp4 0"],
        (0, 0),
    ),
    "hmdb51": (
        {
            "wave_test_split1.txt": "a_wave_u_nm_np1_fr_med_1.avi 1 \nb_wave_0.avi 0 \n",
            "brush_hair_test_split1.txt": "April_09_brush_hair_u_nm_np1_ba_goo_0.avi 2 \n",
        },
        [
            "wave/a_wave_u_nm_np1_fr_med_1.avi",
            "wave/b_wave_0.avi",
            "brush_hair/April_09_brush_hair_u_nm_np1_ba_goo_0.avi",
        ],
        ["brush_hair", "wave"],
        ["wave/a_wave_u_nm_np1_fr_med_1.avi 1"],
        ["brush_hair/April_09_brush_hair_u_nm_np1_ba_goo_0.avi 0"],
        (0, 1),
    ),
    "diving48": (
        {
            "Diving48_vocab.json": """[
                ["Back", "15som", "05Twis", "FREE"], ["Back", "15som", "15Twis", "FREE"]]""",
            "Diving48_V2_train.json": """[
                {"vid_name": "a_00000", "label": 1, "start_frame": 0, "end_frame": 86},
                {"vid_name": "gone_00001", "label": 0, "start_frame": 0, "end_frame": 90}]""",
            "Diving48_V2_test.json": """[
                {"vid_name": "b-c_00361", "label": 0, "start_frame": 0, "end_frame": 59}]""",
        },
        ["rgb/a_00000.mp4", "rgb/b-c_00361.mp4"],
        ["Back+15som+05Twis+FREE", "Back+15som+15Twis+FREE"],
        ["rgb/a_00000.mp4 1"],
        ["rgb/b-c_00361.mp4 0"],
        (1, 0),
    ),
    "activitynet": (
        {
            "activity_net.v1-3.min.json": """{"version": "VERSION 1.3", "database": {
                "sJFgo9H6zNo": {"subset": "training", "duration": 217.6, "annotations": [
                    {"segment": [0.0, 124.2], "label": "Zumba"},
                    {"segment": [124.3, 199.7], "label": "Fun sliding down"}]},
                "V1zhqaGFY2A": {"subset": "validation", "duration": 160.0, "annotations": [
                    {"segment": [9.1, 153.9], "label": "Fun sliding down"}]},
                "-cap444": {"subset": "testing", "duration": 9.0, "annotations": []}}}"""
        },
        ["v_sJFgo9H6zNo.mp4", "val/v_V1zhqaGFY2A.mkv", "v_-cap444.mp4"],
        ["Fun sliding down", "Zumba"],
        ["v_sJFgo9H6zNo.mp4 1"],
        ["val/v_V1zhqaGFY2A.mkv 0"],
        (0, 1),
    ),
}


def write_files(folder, files: dict) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode())


@pytest.mark.parametrize("dataset", CASES)
def test_official_annotations_are_converted_to_lists(dataset, tmp_path):
    files, videos, names, train, val, (missing, others) = CASES[dataset]
    write_files(tmp_path / "annotations", files)
    write_files(tmp_path / "videos", dict.fromkeys(videos, "-"))
    annotations = read_public_annotations(dataset, tmp_path / "annotations", 1)
    frames = dataset == "sthv1"
    result = match_videos(annotations._replace(segments={}), tmp_path / "videos", frames)
    assert annotations.names == names
    assert (result["train"], result["val"]) == (train, val)
    counts = [len(result[name]) for name in ("missing", "others", "doubles")]
    assert counts == [missing, others, 0]
    (tmp_path / "list.txt").write_text("\n".join(train))
    source = "frames" if frames else "video"
    path = tmp_path / "list.txt"
    file = AnnotationFile("list.txt", path, tmp_path / "videos", source, num_classes=len(names))
    assert len(read_annotations(file, min_frames=1)[0]) == len(train)


@pytest.fixture
def make_lists(run_here):
    def run(folder, *more):
        arguments = ["--dataset", "kinetics", "--videos", folder / "videos"]
        return run_here("scripts/data/make_lists.py", *arguments, "--out", folder / "lists", *more)

    return run


def test_folders_of_frames_count_up_from_0_or_1(tmp_path, capsys):
    """Others, and those of a file system, are left out."""
    numbers = {"1": range(3), "2": range(1, 4), "3": (0, 2), "4": (5, 6)}
    for folder, frames in numbers.items():
        write_files(tmp_path, {f"{folder}/img_{k:05d}.PNG": "-" for k in frames})
    write_files(tmp_path, {"__MACOSX/1/._00001.jpg": "-", "1/.DS_Store": "-"})
    assert find_videos(tmp_path, frames=True) == {"1": ["1 3"], "2": ["2 3"]}
    assert capsys.readouterr().err.count("without a gap (2), for example 3") == 1


def test_segments_of_uncut_kinetics_videos(make_lists, tmp_path):
    """Two segments of one video; another version of the csv has a further column."""
    videos = {"-0A2-mhWuYk.mp4": "-", "sub/0347ZoDXyP0.mkv": "-", "gone_000001_000011.mp4": "-"}
    write_files(tmp_path / "videos", {**videos, "-0A2-mhWuYk.webm": "-"})
    more = "label,youtube_id,time_start,time_end,split,is_cc\nabseiling,-0A2-mhWuYk,29.5,39,val,0\n"
    write_files(tmp_path / "annotations", {"train.csv": KINETICS, "val.csv": more})
    done = make_lists(tmp_path, "--annotations", tmp_path / "annotations", "--uncut")
    expected = {"classes": 2, "train": 2, "val": 1, "missing": 1, "others": 1, "doubles": 1}
    assert read_result(done).items() >= expected.items()
    assert "a second file of one video, not listed: -0A2-mhWuYk.webm" in done.stderr
    lists = tmp_path / "lists"
    train = ["-0A2-mhWuYk.mp4 19 29 1", "sub/0347ZoDXyP0.mkv 95 105 0"]
    assert (lists / "train.txt").read_text().splitlines() == train
    assert (lists / "val.txt").read_text() == "-0A2-mhWuYk.mp4 29.5 39 0\n"
    assert (lists / "missing.txt").read_text() == "train gone_000001_000011 0\n"
    assert (lists / "unlisted.txt").read_text() == "gone_000001_000011.mp4\n"
    make_lists(tmp_path, "--annotations", tmp_path / "annotations", "--uncut", "--names", "csv")
    assert (lists / "test.csv").read_text() == (lists / "val.csv").read_text()
    write_files(tmp_path / "other", CASES["sthv2"][0])
    arguments = ["--dataset", "sthv2", "--annotations", tmp_path / "other", "--uncut"]
    assert_one_line_error(make_lists(tmp_path, *arguments), "--uncut")


@pytest.mark.parametrize(
    ("dataset", "damage", "message"),
    [
        ("kinetics", ("train.csv", ",19,", ",soon,"), "soon"),
        ("sthv2", ("something-something-v2-labels.json", '"1"', '"2"'), "do not count up"),
        ("moments", ("trainingSet.csv", "clapping/", "claping/"), "'claping'"),
    ],
)
def test_damaged_annotations_are_reported_in_one_line(dataset, damage, message, tmp_path):
    name, old, new = damage
    files = dict(CASES[dataset][0])
    files[name] = files[name].replace(old, new)
    write_files(tmp_path / "annotations", files)
    write_files(tmp_path, {"a.mp4": "-"})
    with pytest.raises(ValueError) as error:
        match_videos(read_public_annotations(dataset, tmp_path / "annotations", 1), tmp_path, False)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.fixture
def sort_imagenet(run_here):
    def run(annotations, images, out):
        arguments = ["--annotations", annotations, "--images", images, "--out", out]
        return run_here("scripts/data/sort_imagenet.py", *arguments)

    return run


@pytest.mark.parametrize("row", ["../x,n01440764 1", "ILSVRC2012_val_00000001,../../x 1", '"a'])
def test_imagenet_annotations_cannot_name_another_folder(row, sort_imagenet, tmp_path):
    solution = f"ImageId,PredictionString\n{row}\n"
    write_files(tmp_path, {"images/x.JPEG": "-", "solution.csv": solution})
    done = sort_imagenet(tmp_path / "solution.csv", tmp_path / "images" / "deep", tmp_path / "out")
    assert_one_line_error(done)
    assert "solution.csv" in done.stderr
    assert not (tmp_path / "out").exists()


SYNSETS = ["n02119789", "n01440764"]
IMAGES = [f"ILSVRC2012_val_{k:08d}.JPEG" for k in (1, 2)]


def write_imagenet(folder, kit: str) -> None:
    """Writes the classes of IMAGES in the forms of Kaggle and of the development kit.

    The kit also has a third image.
    """
    rows = [f"{name[:-5]},{synset} 85 1 499 272 \n" for name, synset in zip(IMAGES, SYNSETS)]
    write_files(folder, {"LOC_val_solution.csv": "ImageId,PredictionString\n" + "".join(rows)})
    write_files(folder / kit, {"ILSVRC2012_validation_ground_truth.txt": "1\n2\n2\n"})
    form = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O"), ("num_children", "O")]
    synsets = np.array([[(1, SYNSETS[0], "kit fox", 0)], [(2, SYNSETS[1], "tench", 0)]], form)
    savemat(str(folder / kit / "meta.mat"), {"synsets": synsets})


def test_imagenet_validation_images_go_into_class_folders(sort_imagenet, tmp_path):
    """With Kaggle's file, and with the kit, whose class numbers are not those of the folders.

    An image is a relative link.
    """
    write_files(tmp_path / "images", dict.fromkeys(IMAGES, "-"))
    (tmp_path / "images" / IMAGES[1]).rename(tmp_path / "kept")
    (tmp_path / "images" / IMAGES[1]).symlink_to("../kept")
    write_imagenet(tmp_path, "kit")
    for source, missing in (("LOC_val_solution.csv", 0), ("kit", 1)):
        out = tmp_path / f"val_{missing}"
        result = read_result(sort_imagenet(tmp_path / source, tmp_path / "images", out))
        assert result == {"classes": 2, "images": 2, "missing": missing}
        files = sorted(str(path.relative_to(out)) for path in out.rglob("*.JPEG"))
        assert files == [f"{SYNSETS[1]}/{IMAGES[1]}", f"{SYNSETS[0]}/{IMAGES[0]}"]
        assert [(out / file).read_text() for file in files] == ["-", "-"]
    done = sort_imagenet(tmp_path / "kit", tmp_path, out)
    assert (done.returncode, "--images" in done.stderr) == (2, True)

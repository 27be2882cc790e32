"""Every network folder provides every method of `Network`, at toy size."""

import inspect
import sys

import numpy as np
import pytest

from benchmarks.benchmark import measure_eval
from scripts.analysis.build_networks import build_eval_network
from tests.helpers import run_command
from tests.numbered_videos import write_numbered_video
from tests.toy_recipes import draw_samples, load_toy_config
from utils.evaluate.label_space import LabelSpace
from utils.evaluate.scorer import CellScorer
from utils.files import ROOT
from utils.inference.export import ExportSpec
from utils.inference.model import Model
from utils.inference.stream import WindowPredictor
from utils.networks import Network, find_build, find_network, list_networks
from utils.runtime import Runtime
from utils.tests.parity import mark_slow_except
from utils.train.plan import Plan
from utils.train.train import build_training
from utils.train.train_step import TrainStep
from utils.weights.parameter_names import ParameterNames


def test_views_of_a_video_are_cut_without_importing_mindspore():
    """A prediction by an exported file starts in a moment."""
    program = (
        "import sys; from utils.load_config import load_config, find_recipes;"
        "from utils.networks import find_network, list_networks;"
        "networks = map(find_network, list_networks());"
        "cfgs = {n: load_config(n.config, find_recipes()[f'{n.name}_smoke']) for n in networks};"
        "heads = {n.name: len(n.list_label_spaces(cfg)) for n, cfg in cfgs.items()};"
        "print(sorted(heads.items()), 'mindspore' in sys.modules)"
    )
    done = run_command([sys.executable, "-c", program], cwd=ROOT)
    heads = [("mvit_multi", 3), ("resnet50", 1), ("tsm", 1), ("x3d", 1)]
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{heads} False\n", "")


@pytest.mark.parametrize("name", mark_slow_except(list_networks(), "tsm", "resnet50"))
def test_every_method_of_a_network_works(name, tmp_path):
    """A method that this test does not call fails it."""
    network = find_network(name)
    sample = draw_samples(name, tmp_path / "data")
    cfg = load_toy_config(name, f"data.root={tmp_path / 'data'}")
    rt = Runtime()
    results = {}

    records = results["read_records"] = network.read_records(cfg, "train")
    with records[0].open(cfg.data) as frames:
        assert len(frames.frames([0])) == 1
    sampler = results["build_train_sampler"] = network.build_train_sampler(cfg, records, rt)
    rows = network.train_rows(records, cfg=cfg, sampler=sampler, epochs=1, skip=0)
    shape = results["get_sample_shape"] = network.get_sample_shape(cfg)
    labels = np.zeros(cfg.data.batch, np.int32)
    target = results["build_targets"] = network.build_targets(cfg, labels)
    batches = network.create_dataset(cfg, rows, 1)
    delivered = [np.concatenate(column) for column in zip(*batches)]  # as in a plain program
    for column, expected in zip(delivered, zip(*(rows[k] for k in range(len(rows))))):
        np.testing.assert_array_equal(column, np.stack(expected))
    zero_clips, zero_target = rows.make_zero_batch()
    assert zero_clips.shape == (cfg.data.batch, *shape)
    assert (zero_target.shape, zero_target.dtype) == (target.shape, target.dtype)
    shares = rows.list_shares(zero_target)
    assert len(shares) == cfg.data.batch * cfg.data.clips_per_sample
    files = results["list_annotation_files"] = network.list_annotation_files(cfg)
    assert bool(files) == (name != "resnet50")

    step = build_training(Plan(network, cfg, rt, sampler), find_build(name))[0]
    assert isinstance(step, TrainStep)
    net = results["build_model"] = network.build_model(**cfg.model_arguments())
    with pytest.raises(TypeError):
        network.build_model(**cfg.model_arguments(), unknown=1)
    clip = results["get_input_shape"] = network.get_input_shape(cfg)
    assert clip == shape[-len(clip) :]
    spec = results["describe_export"] = network.describe_export(cfg)
    assert isinstance(spec, ExportSpec)
    assert spec.clip == clip

    records.write_classes(tmp_path, rt)
    heads = results["list_label_spaces"] = network.list_label_spaces(cfg)
    assert all(isinstance(head, LabelSpace) for head in heads)
    eval_rows = results["build_eval_rows"] = network.build_eval_rows(cfg, rt)
    assert list(eval_rows) == list(range(len(heads)))
    assert len(eval_rows[0].records.list_names()) == len(eval_rows[0].records)
    with network.open_frames(cfg, str(sample)) as frames:
        results["open_frames"] = frames.frames([0])
    scorer = CellScorer(build_eval_network(name, cfg))
    measured = measure_eval(network, cfg=cfg, rt=rt, seconds=0, scorer=scorer)
    assert measured["videos"] == cfg.eval.batch

    names = network.parameter_names()
    assert isinstance(names, ParameterNames)
    own = [parameter.name for parameter in net.get_parameters()]
    source_format = names.detect_format(own)
    assert len({names.canonical_name(weight, source_format) for weight in own}) == len(own)
    assert names.fit_shape(own[0], (1, 2, 3), (4,)) is None
    assert names.default_value("other", source_format) is None

    video = tmp_path / "one.mp4"
    write_numbered_video(video, 30, 64, 48, 15.0)
    model = Model(network, cfg=cfg, scorer=scorer, heads=heads)
    results["find_online_predictor"] = network.find_online_predictor(cfg) or WindowPredictor
    window = {} if network.reads_images else {"window": 1.0}
    shown = [*model.stream(video, **window)]
    shapes = [probabilities.shape for probabilities in shown[0].probabilities]
    assert shapes == [(head.classes,) for head in heads]

    methods = inspect.getmembers(Network, inspect.isfunction)
    assert set(results) == {name for name, _ in methods if name[0] != "_"}
    assert all(value is not None for value in results.values())

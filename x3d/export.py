"""Exports an X3D checkpoint to MINDIR or ONNX, runs the file and compares it with the network.

    python x3d/export.py --config_path Y --checkpoint_path C --format mindir|onnx --target F
        [--batch 4|free] [--input uint8|float32] [--precision fp32|fp16]

The exported file takes clips (N, 3, T, crop, crop) and returns probabilities (N, classes). N is
eval.batch, or --batch. The file normalises uint8 pixels; with --input float32 it expects normalised
ones. The last line of stdout is one JSON object: format, file, bytes, precision, opset (of ONNX),
input, outputs, max_abs_difference, relative_difference. See docs/export.md.
"""

import sys
from functools import partial
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # a script starts in its own folder

from utils import cli, log, runtime
from utils.evaluate.metrics import print_result
from utils.export import export, inference
from x3d.config import Config
from x3d.dataset import get_clip_shape
from x3d.model import X3D
from x3d.network import NETWORK


def main(cfg: Config, *, checkpoint_path: str, **options) -> None:
    rt = runtime.start(cfg.run)
    log.start_log(rt)
    export_options = export.check_options(cfg.eval.batch, **options)
    load = partial(inference.load_checkpoint, X3D, cfg, checkpoint_path, NETWORK.classifier)
    shape = get_clip_shape(cfg.data, cfg.test_crop)
    forms = {
        name: "grouped"
        for name in ("depthwise_impl", "stem_impl")
        if cfg.model_arguments()[name] != "dense"
    }
    result = export.export(
        load, shape, "probabilities", export_options, {"network": "x3d"}, **forms
    )
    print_result(result, rt)


if __name__ == "__main__":
    cli.run(main, Config, __doc__, export.check_options)

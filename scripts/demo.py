#!/usr/bin/env python3
"""Opens a page in the browser that predicts the classes of videos, for resnet50 of images.

    python scripts/demo.py --checkpoint_path C [--config_path Y] [--labels FILE] [--network NAME]
        [--section.key=value ...] [--examples FOLDER] [--cam] [--window SECONDS]
        [--host 127.0.0.1] [--port 7860] [--max_mb 100] [--max_seconds 300]

A visitor uploads a video or chooses one of 8 examples, taken evenly from FOLDER. The page shows the
5 best classes and, of a video above 30 seconds or with --window, those of every window. --cam also
draws heat maps, which need a checkpoint. Checkpoints of the zoo and names of published weights need
no --config_path.

Only this machine can open the page, by the name 127.0.0.1 or localhost; --host 0.0.0.0 opens it to
the network. Uploads are limited by --max_mb, all of them by ten times that, and by --max_seconds;
they are deleted after 10 minutes and at the end. Ctrl-C ends the page. It needs Gradio, which is
not installed with the zoo. Docs: docs/demo.md.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from utils.entry import prepare_process

prepare_process(__name__)

import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Annotated, Optional

from scripts.prediction.files import list_videos
from utils import cli, signals
from utils.load_config import list_settings
from utils.messages import print_line
from utils.networks import find_network, list_networks
from utils.predict import model as api
from utils.video.media_files import IMAGE_SUFFIXES, VIDEO_SUFFIXES

# Without numpy<2, pip takes a newer NumPy for Gradio, which MindSpore cannot use.
INSTALL = "pip install 'gradio>=6.31,<7' 'numpy<2'"
EXAMPLES = 8
PORT = 7860
Port = Annotated[int, cli.number_between(1, 2**16 - 1)]


def main(
    settings: Sequence[str],
    *,
    checkpoint_path: str,
    config_path: str = "",
    labels: str = "",
    network: str = "",
    examples: str = "",
    cam: bool = False,
    window: Optional[cli.NonNegativeFloat] = None,
    host: str = "127.0.0.1",
    port: Port = PORT,
    max_mb: cli.PositiveInt = 100,
    max_seconds: cli.NonNegativeFloat = 300.0,
) -> None:
    if find_spec("gradio") is None:
        raise ValueError(f"the page needs Gradio: {INSTALL}")
    check_address(host, port)
    names = (config_path, checkpoint_path) if config_path else (checkpoint_path,)
    model = api.load(*names, settings=settings, labels=labels, network=network)
    reads_videos = bool(model.network.list_annotation_files(model.cfg))
    videos = choose_examples(examples, VIDEO_SUFFIXES if reads_videos else IMAGE_SUFFIXES)
    if cam and Path(model.scorer.name).suffix in (".onnx", ".mindir"):
        raise ValueError(f"--cam: {model.scorer.name} has no gradients; give its checkpoint")
    with tempfile.TemporaryDirectory(prefix="zoo_demo_") as folder:

        def stop(number: int) -> None:
            shutil.rmtree(folder, ignore_errors=True)  # uploads
            signals.end_command(number)

        with signals.handle_signals(stop):
            os.environ["GRADIO_TEMP_DIR"] = folder  # read when Gradio is imported
            from scripts.prediction import demo_page

            predictor = demo_page.Predictor(model, max_seconds=max_seconds, window=window, cam=cam)
            page = demo_page.build_page(predictor, examples=videos, max_mb=max_mb)
            address = demo_page.launch(page, host=host, port=port, max_mb=max_mb)
            if host not in demo_page.LOCAL:
                print_line(f"warning: --host {host}: whoever reaches this machine can use the page")
            print_line(f"open {address} in a browser; ctrl-C ends the page")
            threading.Event().wait()


def check_address(host: str, port: int) -> None:
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        reason = (error.strerror or str(error)).split(" (")[0]
        raise ValueError(f"--host {host} --port {port}: {reason}; choose others") from None


def choose_examples(path: str, suffixes: Sequence[str]) -> list[str]:
    """EXAMPLES videos of a folder, at equal distances in their order."""
    if not path:
        return []
    try:
        files = list_videos([path], suffixes)
    except ValueError as error:
        raise ValueError(f"--examples: {error}") from None
    count = min(EXAMPLES, len(files))
    return [files[k * len(files) // count] for k in range(count)]


if __name__ == "__main__":
    configs = [find_network(name).config for name in list_networks()]
    names = sorted({name for config in configs for name in list_settings(config)})
    cli.run_command(main, __doc__, settings=names)

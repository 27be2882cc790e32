"""Opens a page in the browser that predicts the classes of videos, for resnet50 of images.

    python scripts/demo.py --config_path Y --checkpoint_path C [--labels FILE] [--network NAME]
        [--section.key=value ...] [--config_path Y --checkpoint_path C ...] [--examples FOLDER]
        [--cam] [--window SECONDS] [--host 127.0.0.1] [--port 7860] [--max_mb 100]
        [--max_seconds 300]

A visitor uploads a video, records one with the camera, or chooses one of 8 examples, taken evenly
from FOLDER. The page shows the 5 best classes and, of a video above 30 seconds or with
--window, the classes over time. --cam also draws heat maps, which need checkpoints.

Several models stand side by side: a second --config_path begins the next one. Settings, --labels
and --network are those of the model before them or, before the first, those of all models. A
--checkpoint_path alone may be the name of published weights.

Only this machine can open the page; --host 0.0.0.0 opens it to the network. Uploads are limited by
--max_mb and --max_seconds, and are deleted after 10 minutes and at the end. Ctrl-C ends the page.
It needs Gradio, which is not installed with the zoo. Docs: docs/demo.md.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from utils.entry import prepare_process

prepare_process(__name__)

import os
import re
import shutil
import socket
import tempfile
import threading
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Optional

from scripts.prediction.files import list_videos
from utils import cli, signals
from utils.load_config import list_settings
from utils.messages import print_line
from utils.networks import find_network, find_network_of_yaml, list_networks
from utils.predict import model as api
from utils.video.media_files import IMAGE_SUFFIXES, VIDEO_SUFFIXES

if TYPE_CHECKING:
    from scripts.prediction.cam import GradCam

# Without numpy<2, pip takes a newer NumPy for Gradio, which MindSpore cannot use.
INSTALL = "pip install 'gradio>=6.31,<7' 'numpy<2'"
NEXT_MODEL = ("--config_path", "--checkpoint_path")
OPTIONS_OF_MODEL = ("checkpoint_path", "labels", "network")
EXAMPLES = 8
LOCAL = ("127.0.0.1", "localhost")
PORT = 7860
Port = Annotated[int, cli.integer_between(1, 2**16 - 1)]


def run() -> None:
    """Reads the command line, loads the models and serves the page until ctrl-C or SIGTERM."""
    models, options = parse(sys.argv[1:])
    if find_spec("gradio") is None:
        raise ValueError(f"the page needs Gradio and Python 3.10 or newer: {INSTALL}")
    check_address(options.get("host", LOCAL[0]), options.get("port", PORT))
    serve(dict(zip(name_models(models), [load_model(**model) for model in models])), **options)


def parse(words: Sequence[str]) -> tuple[list[dict], dict]:
    """The arguments of `load_model` for each model, and of `serve`."""
    settings = {name for n in list_networks() for name in list_settings(find_network(n).config)}
    models = []
    options = {}
    for group in split_models(words):
        parser = cli.Parser(__doc__, [], load_model, serve)
        parser.settings = sorted(settings)
        path, values, arguments = parser.parse(group)
        names = [name for name in OPTIONS_OF_MODEL if name in arguments]
        own = {name: arguments.pop(name) for name in names}
        models.append({"config_path": path or "", "settings": values, **own})
        options.update(arguments)
    return models, options


def split_models(words: Sequence[str]) -> list[list[str]]:
    """The words of each model, after those that stand before the first model.

    An option of NEXT_MODEL begins a model, unless it is the first of its name in this one.
    """
    groups: list[list[str]] = [[]]
    present: set[str] = set()
    for word in words:
        name = word.partition("=")[0]
        if name in NEXT_MODEL and (not present or name in present):
            groups.append([])
            present = set()
        present |= {name} & {*NEXT_MODEL}
        groups[-1].append(word)
    return [[*groups[0], *group] for group in groups[1:]] or groups


def load_model(
    settings: Sequence[str],
    *,
    checkpoint_path: str,
    config_path: str = "",
    labels: str = "",
    network: str = "",
) -> api.Model:
    if not config_path:
        return api.load(checkpoint_path, settings=settings, labels=labels)
    path = api.find_recipe(config_path)
    network = network or find_network_of_yaml(path).name
    options = {"settings": settings, "labels": labels, "network": network}
    return api.load(path, checkpoint_path, **options)


def name_models(models: Sequence[dict]) -> list[str]:
    """A name for each model: its recipe; the folder of the checkpoint or its path if that differs.

    Gradio's client calls a model by this name.
    """
    paths = [Path(model["checkpoint_path"]) for model in models]
    recipes = [Path(model["config_path"] or path).stem for model, path in zip(models, paths)]
    for names in (recipes, [path.parent.name for path in paths], [str(path) for path in paths]):
        if len(set(names)) == len(names):
            break
    return [re.sub(r"\W+", "_", name) for name in names]


def check_address(host: str, port: int) -> None:
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        reason = (error.strerror or str(error)).split(" (")[0]
        raise ValueError(f"--host {host} --port {port}: {reason}; choose others") from None


def serve(
    models: dict[str, api.Model],
    *,
    examples: str = "",
    cam: bool = False,
    window: Optional[cli.NonNegativeFloat] = None,
    host: str = LOCAL[0],
    port: Port = PORT,
    max_mb: cli.PositiveInt = 100,
    max_seconds: cli.NonNegativeFloat = 300.0,
) -> None:
    """Serves the page of the models, by name, until ctrl-C or SIGTERM."""
    reads_videos = check_models(models)
    videos = choose_examples(examples, VIDEO_SUFFIXES if reads_videos else IMAGE_SUFFIXES)
    cams = [build_cam(model) if cam else None for model in models.values()]
    with tempfile.TemporaryDirectory(prefix="zoo_demo_") as folder:

        def stop(number: int) -> None:
            shutil.rmtree(folder, ignore_errors=True)  # uploads
            signals.end_command(number)

        with signals.handle_signals(stop):
            os.environ["GRADIO_TEMP_DIR"] = folder  # read when Gradio is imported
            from scripts.prediction import demo_page

            panels = [
                demo_page.Panel(name, model=model, max_seconds=max_seconds, window=window, cam=cam)
                for (name, model), cam in zip(models.items(), cams)
            ]
            page = demo_page.build_page(panels, examples=videos, max_mb=max_mb)
            address = demo_page.launch(page, host=host, port=port, max_mb=max_mb)
            if host not in LOCAL:
                print_line(f"warning: --host {host}: whoever reaches this machine can use the page")
            print_line(f"open {address} in a browser; ctrl-C ends the page")
            threading.Event().wait()


def check_models(models: dict[str, api.Model]) -> bool:
    """Whether the models read videos; ValueError if only some of them do."""
    reads_videos = {
        name: bool(model.network.list_annotation_files(model.cfg)) for name, model in models.items()
    }
    if len(set(reads_videos.values())) > 1:
        images = ", ".join(name for name, value in reads_videos.items() if not value)
        raise ValueError(f"--config_path: {images} reads images, the others videos: open two pages")
    return all(reads_videos.values())


def choose_examples(path: str, suffixes: Sequence[str]) -> list[tuple[str, str]]:
    """The names and paths of EXAMPLES videos of a folder, at equal distances in their order."""
    if not path:
        return []
    files = list_videos([path], suffixes)
    if files == [path] and Path(path).is_dir():
        raise ValueError(f"--examples: {path} has no file that ends in {', '.join(suffixes)}")
    count = min(EXAMPLES, len(files))
    chosen = [files[k * len(files) // count] for k in range(count)]
    return [(os.path.relpath(Path(file).with_suffix(""), path), file) for file in chosen]


def build_cam(model: api.Model) -> "GradCam":
    from scripts.prediction.cam import GradCam

    path = model.scorer.name
    if Path(path).suffix in (".onnx", ".mindir"):
        raise ValueError(f"--cam: {path} has no gradients; give the checkpoint that it is made of")
    return GradCam(model)


if __name__ == "__main__":
    cli.main_guard(__doc__, run)

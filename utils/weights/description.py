"""What a checkpoint says of itself: the entry `zoo` beside its weights, and in an exported file.

It is JSON: the network and its settings, the class names of every data set, metrics, the source of
converted weights, and the version of the zoo. `load_param_into_net` of plain MindSpore reports it
as not loaded. A file may come from anybody: nothing in the text is executed, and settings are
checked like those of a config file.
"""

import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Optional, Union

from utils.files import get_base_folder
from utils.load_config import build_config, to_dict
from utils.messages import VALUE, escape_control, shorten
from utils.settings import ConfigT
from utils.weights.checkpoint_file import DESCRIPTION, CheckpointFile

VERSION = "0.1.0"  # of the zoo, as in pyproject.toml
MAX_CHARACTERS = 1 << 22  # names of 100,000 classes; a hostile file may have more
# A MINDIR or ONNX file is a protobuf message. Its field 14 is a list of metadata, texts by name; a
# field may be anywhere. So the last entry is `crc32`, the CRC-32 of all bytes before it, as 8
# digits. These are field 14 of 17 bytes: name and text, with their lengths.
CHECKSUM_HEAD = b"\x72\x11\x0a\x05crc32\x12\x08"
CHECKSUM_SIZE = len(CHECKSUM_HEAD) + 8


@dataclass(frozen=True)
class Description:
    """The network of a checkpoint.

    `name` is that of its recipe or run, `settings` are {section: {key: value}}, `classes` the class
    names by the name of the data set, which is empty if there is one. `metrics` of a
    validation, `source` names the file or weights that were converted, `seconds` is what a training
    clip covers of a video, 0 if unknown.
    """

    network: str
    name: str
    settings: Mapping[str, Mapping[str, Any]]
    classes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    version: str = ""
    seconds: float = 0.0

    def to_text(self) -> str:
        return json.dumps(asdict(self))  # ASCII: the name of a class folder may be no UTF-8

    def build_config(self, cls: type[ConfigT], path: Path, overrides: Sequence[str]) -> ConfigT:
        """The config of the network; `overrides` are `section.key=value`, `path` the checkpoint's.

        Raises ValueError for settings that this version does not know.
        """
        values = {section: dict(settings) for section, settings in self.settings.items()}
        return build_config(
            cls, values, self.name, overrides, owner=f"the settings in {path}", of_checkpoint=True
        )


def describe(network: str, cfg: Any, **values: Any) -> Description:
    """The description of weights with the settings `cfg`; `values` are further fields."""
    settings = to_dict(cfg)
    # Those of the place where it was trained, which say nothing about the network
    del settings["run"]["out"]
    settings["train"].pop("pretrained", None)
    name = Path(cfg.run.out).name
    return Description(network, name, settings, version=VERSION, **values)


def drop_folders(value: Any) -> Any:
    """Settings without the folders of this machine, for a file that is made to be shared.

    A path in the checkout becomes relative to it, as in a recipe; of another one the name stays.
    """
    if isinstance(value, dict):
        return {key: drop_folders(item) for key, item in value.items()}
    if isinstance(value, list):
        return [drop_folders(item) for item in value]
    if not isinstance(value, str) or not os.path.isabs(value):
        return value
    path = Path(os.path.normpath(value))
    base = get_base_folder()
    return str(path.relative_to(base)) if path.is_relative_to(base) else path.name or "."


def read_description(file: Union[CheckpointFile, Path]) -> Optional[Description]:
    """The description in a file from `open_weights`: a checkpoint, or an exported file's path.

    None if it has none, or if the exported file is missing.
    """
    if isinstance(file, CheckpointFile):
        path, texts = file.path, file.texts
    else:
        path, texts = file, read_exported_texts(file) if file.is_file() else {}
    return parse(texts[DESCRIPTION], path) if DESCRIPTION in texts else None


def append_checksum(path: Path) -> None:
    """Adds a checksum to a MINDIR or ONNX file; other programs read it as metadata."""
    with open(path, "r+b") as file:
        file.write(CHECKSUM_HEAD + b"%08x" % zlib.crc32(file.read()))


def check_checksum(path: Path) -> bool:
    """Whether a file can be read and has a checksum. Raises ValueError if the checksum differs."""
    content = path.read_bytes() if path.is_file() else b""
    field = content[-CHECKSUM_SIZE:]
    different = sum(byte != own for byte, own in zip(field, CHECKSUM_HEAD))
    if len(field) < CHECKSUM_SIZE or different > 1:  # one byte may be damaged
        return False
    if field != CHECKSUM_HEAD + b"%08x" % zlib.crc32(memoryview(content)[:-CHECKSUM_SIZE]):
        raise ValueError(f"{path}: its checksum differs from its content; copy or export it again")
    return True


def read_exported_texts(path: Path) -> Mapping[str, str]:
    """The metadata of a MINDIR or ONNX file. Raises ValueError if it is damaged."""
    check_checksum(path)
    try:
        if path.suffix == ".mindir":
            from mindspore.train.mind_ir_pb2 import ModelProto

            return ModelProto.FromString(path.read_bytes()).user_info
        import onnx

        model = onnx.load(str(path), load_external_data=False)
        return {entry.key: entry.value for entry in model.metadata_props}
    except Exception:  # noqa: BLE001 protobuf's own
        raise ValueError(f"{path}: not a readable {path.suffix[1:].upper()} file") from None


def parse(text: str, path: Path) -> Description:
    """The description in a checkpoint. Raises ValueError with one line if it is damaged."""
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"{path}: its description has {len(text)} characters, which is too many")
    try:
        values = json.loads(text)
        known = {name: values[name] for name in Description.__dataclass_fields__ if name in values}
        description = Description(**known)
        # A field of another type than it should have, or with what cannot be used.
        texts = [getattr(description, name) for name in ("network", "name", "source", "version")]
        is_text = all(isinstance(text, str) and text.isprintable() for text in texts)
        if not is_text or Path(description.name).name != description.name:
            raise ValueError("a name that cannot be printed or is a path")  # outputs: out/<name>
        if not isinstance(description.seconds, (int, float)) or not 0 <= description.seconds < 1e9:
            raise ValueError("seconds that are no length of a video")
        sections = (description.classes, description.metrics, *description.settings.values())
        if not all(isinstance(mapping, dict) for mapping in sections):
            raise TypeError("a section is not a mapping")
        if not all(isinstance(names, list) for names in description.classes.values()):
            raise TypeError("class names are not a list")
        classes = {k: [*map(escape_control, names)] for k, names in description.classes.items()}
        return replace(description, classes=classes)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        reason = shorten(str(error) or type(error).__name__, VALUE)
        line = f"{path}: its description is damaged ({reason}); give --config_path"
        raise ValueError(line) from None

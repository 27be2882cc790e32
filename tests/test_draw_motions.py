"""benchmarks/draw_motions.py: the animated picture of README.md."""

import json
from pathlib import Path

from PIL import Image

from benchmarks import draw_motions


class NamedVideo:
    """Predicts the motion that a file is named after, or its opposite."""

    def __init__(self, is_right: bool):
        self.is_right = is_right

    def predict(self, path: Path, top: int) -> list:
        motion = path.stem.partition("_")[0]
        return [(motion if self.is_right else "right", 0.98)]


def test_the_picture_moves_and_marks_what_is_right(data_root, tmp_path, monkeypatch, capsys):
    settings = []

    def load(recipe: str, checkpoint: str, **options) -> NamedVideo:
        settings.append(options["settings"])
        return NamedVideo(checkpoint == "tsm.ckpt")

    monkeypatch.setattr(draw_motions.api, "load", load)
    monkeypatch.setattr(draw_motions, "VIDEOS", data_root / "videos" / "test")
    path = tmp_path / "motions.webp"
    draw_motions.main(tsm="tsm.ckpt", tsn="tsn.ckpt", number=0, out=path)
    assert settings == [(), ("model.shift_div=0",)]
    result = json.loads(capsys.readouterr().out)
    assert result["TSM"] == list(draw_motions.MOTIONS)
    assert result["TSN"] == ["right"] * len(draw_motions.MOTIONS)
    assert result["bytes"] == path.stat().st_size < 300_000
    with Image.open(path) as image:
        assert image.n_frames == draw_motions.FRAMES
        first = image.convert("RGB")
        image.seek(draw_motions.FRAMES // 2)
        assert image.convert("RGB").tobytes() != first.tobytes()
    videos = draw_motions.LINE + draw_motions.SIDE + draw_motions.GAP
    upper = first.crop((0, videos, first.width, videos + draw_motions.LINE)).getdata()
    lower = first.crop((0, videos + draw_motions.LINE, *first.size)).getdata()
    assert max(g - r for r, g, _ in upper) > 60 > max(g - r for r, g, _ in lower)
    assert max(r - g for r, g, _ in lower) > 60 > max(r - g for r, g, _ in upper)

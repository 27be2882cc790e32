"""Damaged MINDIR files, loaded and run as in an evaluation.

This is a script, because a crash of MindSpore ends its process:

    python tests/fuzz/mindirs.py MINDIR FOLDER FIRST_SEED COUNT

It prints a JSON line for each file: its seed, and the error message or the number of scores. The
first line has no seed and is for the intact file.
"""

import json
import random
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

from tests.fuzz.damage import change_once, mutate


def damage(content: bytes, seed: int) -> bytes:
    """Damages a MINDIR. Half of the seeds change the graph, because weights are most of a file."""
    from mindspore.train.mind_ir_pb2 import ModelProto

    if seed % 2:
        return mutate(content, seed)
    chance = random.Random(seed)
    model = ModelProto.FromString(content)
    nodes = [*model.graph.node, *model.primitives, *model.graph.input, *model.graph.output]
    part = chance.choice(nodes)
    data = bytearray(part.SerializePartialToString())
    while True:
        change_once(data, chance)
        try:
            part.ParseFromString(bytes(data))
            return model.SerializePartialToString()
        except Exception:  # noqa: BLE001 an exception of protobuf; try another change
            data = bytearray(part.SerializePartialToString())


def main(source: str, folder: str, start: str, count: str) -> None:
    import numpy as np

    from tests.toys import load_toy_config
    from utils import runtime
    from utils.inference import load
    from utils.networks import find_network
    from utils.weights.description import CHECKSUM_SIZE as SIZE

    config = load_toy_config()
    runtime.start(config.run)
    load.build_network = lambda *_: None  # the clips are normalised
    clips = np.ones((2, 4, 3, 32, 32), np.float32)
    # Without the checksum, which would detect all damage.
    content = Path(source).read_bytes()[:-SIZE]
    path = Path(folder) / "damaged.mindir"
    files = [(None, content)]
    files += [(k, damage(content, k)) for k in range(int(start), int(start) + int(count))]
    for seed, data in files:
        print(json.dumps({"begins": seed}), flush=True)
        path.write_bytes(data)
        try:
            scorer = load.open_scorer(find_network("tsm"), config, path)
            scorer.normalize = None
            result = {"scores": scorer(clips).size}
        except ValueError as error:
            result = {"error": str(error)}
        print(json.dumps({"seed": seed, **result}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

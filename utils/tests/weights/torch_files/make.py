"""Makes the files beside it with real PyTorch; run once, by hand, never by a test.

    python utils/tests/weights/torch_files/make.py        # PyTorch 2.13, safetensors 0.8

Every tensor's values follow a formula which the test repeats.
"""

import argparse
import sys
from collections import OrderedDict
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from safetensors.torch import save_file

HERE = Path(__file__).parent
TYPED = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64"
UNTYPED = "uint16 uint32 uint64"  # types without a typed storage


def ramp(dtype: str) -> torch.Tensor:
    """[[0, 1, 2], [3, 4, 5]]."""
    return torch.arange(6.0).reshape(2, 3).to(getattr(torch, dtype))


def views() -> dict:
    base = torch.arange(24.0).reshape(4, 6)
    return {
        "base": base,
        "row": base[1],
        "columns": base[:, 1::2],
        "transposed": base.t(),
        "expanded": torch.tensor([7.0]).expand(3, 4),
        "scalar": torch.tensor(3, dtype=torch.int64),
        "empty": torch.zeros(0),
        "flat": torch.zeros(2, 0, 3, dtype=torch.bool),
    }


def checkpoint() -> dict:
    weight = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    marked = torch.nn.Parameter(torch.arange(2.0))
    marked.note = "an attribute"
    buffer = torch.arange(3.0)
    buffer.note = "an attribute"
    tensors = {"module.fc.weight": weight, "module.fc.bias": marked, "module.mean": buffer}
    state = OrderedDict(tensors)
    state._metadata = OrderedDict([("", {"version": 1})])
    return {
        "epoch": 3,
        "arch": "tsm_resnet50",
        "state_dict": state,
        "best_prec1": torch.tensor(61.5),
        "best_prec5": np.float64(88.25),
        "history": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "swapped": np.arange(3, dtype=">i4"),
        "optimizer": {
            "state": {0: {"step": 10, "momentum_buffer": torch.ones(2, 3), "none": None}},
            "param_groups": [{"lr": 0.1, "betas": (0.9, 0.999), "params": [0], "nesterov": True}],
        },
        "args": argparse.Namespace(lr=0.01, gpus=[0, 1]),
        "size": weight.shape,
        "device": torch.device("cuda", 1),
        "dtype": torch.bfloat16,
        "raw": b"\x00\xff",
        "tags": {"a", "b"},
        "pair": complex(1, -2),
        "crop": slice(1, None, 2),
    }


def save(name: str, tree: object, **options) -> None:
    torch.save(tree, HERE / name, **options)


def main() -> None:
    old = {"_use_new_zipfile_serialization": False}
    dtypes = {kind: ramp(kind) for kind in (TYPED + " " + UNTYPED).split()}
    for name, tree in (("dtypes", dtypes), ("views", views()), ("checkpoint", checkpoint())):
        save(f"{name}.pt", tree)
        save(f"{name}_legacy.pt", tree, **old)
    save("views_protocol4.pt", views(), pickle_protocol=4)
    torch.jit.save(torch.jit.script(torch.nn.Identity()), str(HERE / "script.pt"))
    save("quantized.pt", torch.quantize_per_tensor(torch.arange(4.0), 0.5, 0, torch.qint8))
    save("sparse.pt", torch.eye(2).to_sparse())
    save("complex.pt", torch.tensor([1 + 2j]))
    save("negated.pt", torch._neg_view(torch.arange(3.0)))
    save("float8.pt", ramp("float8_e4m3fn"))
    with mock.patch.object(sys, "byteorder", "big"):
        save("big_endian.pt", torch.arange(3.0))
        save("big_endian_legacy.pt", torch.arange(3.0), **old)
    save("module.pt", torch.nn.Linear(2, 2))
    tensors = {kind: ramp(kind) for kind in TYPED.split()}
    tensors["empty"], tensors["scalar"] = torch.zeros(0, 2), torch.tensor(2.5)
    save_file(tensors, HERE / "dtypes.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main()

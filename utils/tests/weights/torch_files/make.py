"""Makes the files beside it with real PyTorch; run once, by hand, never by a test.

    python utils/tests/weights/torch_files/make.py        # PyTorch 2.13, safetensors 0.8, numpy
        1.26

Every tensor's values follow a formula which the test repeats, except `bits.npz`: PyTorch's own
float32 of all 256 float8 codes and of chosen bfloat16 and complex32 patterns. Big-endian files:

    dtypes_big.pt         dtypes.pt with its storages' bytes swapped and "big" in `byteorder`, as a
                          big-endian machine writes a zip; PyTorch itself must read it back equal
                          (it swaps typed storages only, so untyped ones are compared by the test)
    dtypes_legacy_big.pt  written with sys.byteorder patched: PyTorch swaps the elements of the old
                          format to little-endian on every machine, and only the mark differs
"""

import argparse
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from safetensors.torch import save_file

HERE = Path(__file__).parent
TYPED = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128"
UNTYPED = "uint16 uint32 uint64 complex32 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz"
FLOAT8 = "float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu"


def ramp(dtype: str) -> torch.Tensor:
    """[[0, 1, 2], [3, 4, 5]]; complex numbers have the imaginary part 0.5."""
    values = torch.arange(6.0).reshape(2, 3)
    return (values + 0.5j if "complex" in dtype else values).to(getattr(torch, dtype))


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
    state = OrderedDict(
        [("module.fc.weight", weight), ("module.fc.bias", marked), ("module.mean", buffer)]
    )
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


def bits() -> dict:
    codes = torch.arange(256, dtype=torch.uint8)
    edges = [0, 1, 0x7F, 0x80, 0x3F80, 0x7F7F, 0x7F80, 0x7FC0, 0x8000, 0x8001, 0xBF81, 0xFF80]
    halves = torch.tensor([1.5, float("inf"), -0.0, 2**-24, float("-inf"), 65504.0])
    return {
        **{kind: codes.clone().view(getattr(torch, kind)) for kind in FLOAT8.split()},
        "bfloat16": torch.tensor(edges, dtype=torch.uint16).view(torch.bfloat16),
        "complex32": halves.to(torch.float16).view(torch.complex32),
    }


def swap(source: Path, target: Path) -> None:
    """A zip's storages, each one tensor of a ramp, in big-endian order."""
    names = (TYPED + " " + UNTYPED).split()
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for entry in old.infolist():
            data, (_, name) = old.read(entry), entry.filename.split("/", 1)
            if name == "byteorder":
                data = b"big"
            elif name.startswith("data/"):
                kind = names[int(name[5:])]
                size = len(data) // 6 // (2 if "complex" in kind else 1)
                data = np.frombuffer(data, f"V{size}")
                data = data.view("u1").reshape(-1, size)[:, ::-1].tobytes()
            new.writestr(entry.filename, data)


def save(name: str, tree: object, **options) -> None:
    torch.save(tree, HERE / name, **options)


def main() -> None:
    old = {"_use_new_zipfile_serialization": False}
    dtypes = {kind: ramp(kind) for kind in (TYPED + " " + UNTYPED).split()}
    for name, tree in (("dtypes", dtypes), ("views", views()), ("checkpoint", checkpoint())):
        save(f"{name}.pt", tree)
        save(f"{name}_legacy.pt", tree, **old)
    save("views_protocol4.pt", views(), pickle_protocol=4)
    save("bits.pt", bits())
    wide = {
        name: tensor.to(torch.complex64 if "complex" in name else torch.float32).numpy()
        for name, tensor in bits().items()
    }
    np.savez_compressed(HERE / "bits.npz", **wide)
    swap(HERE / "dtypes.pt", HERE / "dtypes_big.pt")
    typed = {kind: dtypes[kind] for kind in TYPED.split()}
    with mock.patch.object(sys, "byteorder", "big"):
        save("dtypes_legacy_big.pt", typed, **old)
    for name in ("dtypes_big.pt", "dtypes_legacy_big.pt"):
        read = torch.load(HERE / name)
        for kind, tensor in typed.items():
            assert read[kind].tolist() == tensor.tolist(), (name, kind)
    torch.jit.save(torch.jit.script(torch.nn.Identity()), str(HERE / "script.pt"))
    save("quantized.pt", torch.quantize_per_tensor(torch.arange(4.0), 0.5, 0, torch.qint8))
    save("sparse.pt", torch.eye(2).to_sparse())
    save("conjugate.pt", torch.tensor([1 + 2j]).conj())
    save("module.pt", torch.nn.Linear(2, 2))
    save("module_legacy.pt", torch.nn.Linear(2, 2), **old)
    save("storage.pt", [torch.arange(3.0).untyped_storage()])
    safe = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 float8_e4m3fn"
    tensors = {kind: ramp(kind) for kind in safe.split()}
    tensors["empty"], tensors["scalar"] = torch.zeros(0, 2), torch.tensor(2.5)
    save_file(tensors, HERE / "dtypes.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main()

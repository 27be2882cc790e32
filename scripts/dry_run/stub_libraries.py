"""Stub libraries of CANN and CUDA, with which MindSpore does dry runs (scripts.dry_run.simulator).

The MindSpore wheel for Linux holds the whole Ascend back end, on x86-64 also that for GPUs. They
lack only the vendors' shared libraries. This module builds libraries of the same names with gcc,
from the symbol tables of the wheel: every function returns 0, except those of `ascend_stubs.cc`
and `cuda_stubs.c`. Nothing of CANN or CUDA is copied or needed.
"""

import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from scripts.launcher.cuda import find_plugins

SOURCES = Path(__file__).resolve().parent
TOOLS = ("gcc", "g++", "nm", "readelf", "c++filt")
CUDA = "11.6"
BACK_ENDS = {"Ascend": "libmindspore_ascend.so.2", "GPU": f"libmindspore_gpu.so.{CUDA}"}
# Which undefined symbols of a back end are functions of the vendor.
CANN_SYMBOL = re.compile(
    r"_ZNK?(2ge|3ops|2fe|8optiling|3atb|3acl|9acl|5aicpu|13error_message)|_?_?(Z\d+)?(Dlog|CheckLog"
    r"|Nnopbase)|Alog|acl|Acl|Hccl|Hcom|rt[A-Z]|mm[A-Z]|hal|hi_|Msprof|omp_|GOMP_"
)
CUDA_SYMBOL = re.compile(r"cuda|cudnn|cublas|cufft|curand|cusolver|cusparse|nvrtc|cu[A-Z]")
# What the GPU back end links to; one library holds all functions, the others depend on it.
CUDA_NAMES = ("libcuda.so.1", "libcudart.so.11.0", "libcudnn.so.8", "libcublas.so.11") + (
    ("libcufft.so.10", "libcurand.so.10", "libcusolver.so.11", "libcusparse.so.11")
    + ("libnvrtc.so.11.2", "libcublasLt.so.11")
)
# Functions that MindSpore looks up by name while it runs.
LOOKED_UP_NAME = rb"\0((?:acl|Hccl|Hcom|rt)[A-Za-z0-9_]{3,80})(?=\0)"
LOOKED_UP = {"HcomSetGradFusionByIndex", "HcomSetGradFusionBySize"}
ACLNN_MEMORY = {"InitHugeMemThreadLocal", "UnInitHugeMemThreadLocal", "ReleaseHugeMem"} | (
    {"InitPTACacheThreadLocal", "UnInitPTACacheThreadLocal"}
)
CANN_NAMES = {"libopapi.so", "libhccl.so", "libruntime.so", "libprofapi.so", "libascend_hal.so"} | (
    {"libacl_tdt_queue.so", "libacl_tdt_channel.so", "libacl_op_compiler.so"}
)


def explain_missing() -> str:
    """Why no stub library can be built on this machine; empty if it can."""
    missing = ", ".join(tool for tool in TOOLS if not shutil.which(tool))
    return f"a dry run needs {missing}: apt-get install g++ binutils" if missing else ""


def build_stubs(kind: str, cache: Path) -> Path:
    """The folder of the stub libraries of `Ascend` or `GPU`, built in `cache` if it is not there.

    The folder's name has MindSpore's version and a checksum of the sources. Raises ValueError if
    this machine cannot build them.
    """
    if reason := explain_missing():
        raise ValueError(reason)
    version = importlib.metadata.version("mindspore")
    back_end = find_plugins() / BACK_ENDS[kind]
    if not back_end.is_file():
        raise ValueError(f"a dry run needs {back_end.name}, which MindSpore {version} here lacks")
    sources = [*sorted(SOURCES.glob("*_stubs.*")), SOURCES / "chip.cc", Path(__file__)]
    checksum = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    folder = cache / f"{kind.lower()}-{version}-{checksum}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as temporary:
        building = Path(temporary) / "stubs"
        building.mkdir()
        compile_library(building / "libchip.so", SOURCES / "chip.cc", "-lstdc++", "-ldl")
        {"Ascend": build_cann, "GPU": build_cuda}[kind](building)
        try:
            building.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster
                raise
    return folder


def run_tool(*words: object, text: str = None) -> str:
    """The output of a tool. Raises ValueError with the first line of stderr if it fails."""
    command = [str(word) for word in words]
    result = subprocess.run(command, input=text, capture_output=True, text=True, errors="replace")
    if result.returncode:
        line = (result.stderr.strip().splitlines() or ["no output"])[0]
        raise ValueError(f"a dry run's stub libraries: {command[0]} failed: {line}")
    return result.stdout


def build_cann(folder: Path) -> None:
    """Builds CANN: the functions that the Ascend back end links to, or looks up by name."""
    lib = folder / "cann" / "lib64"  # MindSpore looks for these names in the path
    lib.mkdir(parents=True)
    plugins = find_plugins()
    libraries = [
        plugins / BACK_ENDS["Ascend"],
        plugins / "libmindspore_ops_ascend.so",
        *(plugins / "ascend").rglob("*.so"),
    ]
    linked = sorted(list_undefined(libraries, CANN_SYMBOL))
    readable = run_tool("c++filt", text="\n".join(linked)).splitlines()
    stubs = dict(zip(linked, map(write_linked_body, readable)))
    names = LOOKED_UP.copy()
    for path in libraries:  # names of functions among the strings of the back end
        names |= {name.decode() for name in re.findall(LOOKED_UP_NAME, path.read_bytes())}
    aclnn = {name for name in names if name.startswith("aclnn")} | {"aclnnInit", "aclnnFinalize"}
    names |= aclnn | {f"{name}GetWorkspaceSize" for name in aclnn} | ACLNN_MEMORY
    for name in names - stubs.keys():  # returns 0 or, if it creates an object, a pointer
        is_other = name.startswith(("aclrtCreate", "aclrtAllocatorCreate", "aclnn"))
        creates = "Create" in name and not is_other
        stubs[name] = "return (long)malloc(256);" if creates else "return 0;"
    headers = "".join(run_tool("readelf", "-d", path) for path in libraries)
    needed = set(re.findall(r"NEEDED.*\[(.*\.so)\]", headers))
    needed -= {path.name for path in plugins.parent.rglob("*.so*")}
    build_libraries(
        folder,
        base=lib / "libascendcl.so",
        source=SOURCES / "ascend_stubs.cc",
        stubs=stubs,
        names=needed | CANN_NAMES,
    )


def build_cuda(folder: Path) -> None:
    """Builds CUDA: the functions that the GPU back end links to, and a compiler's version."""
    lib = folder / "lib64"
    tools = folder / "bin"
    lib.mkdir()
    tools.mkdir()
    plugins = find_plugins()
    libraries = [plugins / BACK_ENDS["GPU"]]
    libraries += [path for name in ("gpu", f"gpu{CUDA}") for path in (plugins / name).glob("*.so*")]
    store = "*object = malloc(256); return 0;"
    names = list_undefined(libraries, CUDA_SYMBOL)
    stubs = {name: store if "Create" in name else "return 0;" for name in names}
    build_libraries(
        folder,
        base=lib / "libcuda.so.1",
        source=SOURCES / "cuda_stubs.c",
        stubs=stubs,
        names=CUDA_NAMES,
    )
    (lib / f"libcudart.so.{CUDA}.55").symlink_to("libcudart.so.11.0")
    (folder / "version.json").write_text('{"cuda": {"version": "11.6.55"}}\n')
    compiler = tools / "nvcc"
    compiler.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {CUDA}, V11.6.55'\n")
    compiler.chmod(0o755)


def build_libraries(
    folder: Path, base: Path, source: Path, stubs: dict[str, str], names: Iterable[str]
) -> None:
    """Builds `base` from `source` and stubs, and empty libraries of `names` that depend on it.

    `stubs` are the bodies of functions by name. They are weak: a function of `source` replaces the
    stub of that name. Mangled names of C++ are names in C too. The first argument is an object:
    `this`, or on x86-64 the address of a returned object, which aarch64 has in register x8.
    """
    lines = [
        f"__attribute__((weak)) long {name}(void **object) {{ {body} }}"
        for name, body in sorted(stubs.items())
    ]
    generated = folder / "stubs.c"
    generated.write_text("\n".join(["extern void *malloc(unsigned long);", *lines, ""]))
    compile_library(base, source, generated, "-lstdc++")
    for name in sorted({*names} - {base.name}):
        empty = ("-nostdlib", "-x", "c", os.devnull)
        compile_library(base.parent / name, "-Wl,--no-as-needed", base, *empty)


def compile_library(target: Path, *words: object) -> None:
    old_strings = "-D_GLIBCXX_USE_CXX11_ABI=0"  # as the wheel is built
    name = f"-Wl,-soname,{target.name}"
    run_tool("gcc", "-w", "-shared", "-fPIC", old_strings, "-o", target, *words, name)


def list_undefined(libraries: Iterable[Path], pattern: re.Pattern) -> set[str]:
    """The undefined symbols of all libraries that begin with `pattern`."""
    text = "".join(run_tool("nm", "-D", "--undefined-only", path) for path in libraries)
    names = {line.split()[-1].partition("@")[0] for line in text.splitlines() if line.strip()}
    return {name for name in names if pattern.match(name)}


FIND_RETURNED = '__asm__("mov %0, x8" : "=r"(object)); ' if platform.machine() == "aarch64" else ""
RETURNS_OBJECT = re.compile(
    r"ge::(Tensor::GetTensorDesc|TensorDesc::Get(Shape|OriginShape)|Operator::GetOutputDesc"
    r"|OperatorFactory::CreateOperator|GNode::GetName)"
)


def write_linked_body(readable: str) -> str:
    """C code for a function with this demangled name: returns an empty object, or else 0."""
    constructor = re.match(r"ge::(\w+)::\1\(", readable)
    if constructor or RETURNS_OBJECT.match(readable):
        is_operator = "CreateOperator" in readable or (constructor and constructor[1] == "Operator")
        third_word = "object[2] = 0; " if is_operator else ""
        address = "" if constructor else FIND_RETURNED
        return f"{address}object[0] = object[1] = 0; {third_word}return (long)object;"
    return 'return (long)"";' if "GetString() const" in readable else "return 0;"

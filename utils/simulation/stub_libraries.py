"""Empty CANN and CUDA libraries, with which MindSpore's Ascend and GPU back ends load anywhere.

The MindSpore wheel for x86-64 Linux holds the whole Ascend and GPU back ends. They lack only the
vendors' shared libraries. This module builds libraries of the same names with gcc, from the symbol
tables of the wheel itself: every function returns 0, but for those of `ascend_stubs.cc` and
`cuda_stubs.c`. Nothing of CANN or CUDA is copied or needed.

With MS_SIMULATION_LEVEL=1 MindSpore then compiles graphs for the device, selects kernels, plans
memory and runs the step without computing anything: a dry run (`utils.simulation.dry_run`).
"""

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from utils.files import report_write_errors

SOURCES = Path(__file__).resolve().parent
TOOLS = ("gcc", "g++", "nm", "readelf", "c++filt")
SYSTEM = ("c.so.6", "m.so.6", "stdc++.so.6", "gcc_s.so.1", "pthread.so.0", "dl.so.2", "rt.so.1")
CUDA = "11.6"
BACK_ENDS = {"Ascend": "libmindspore_ascend.so.2", "GPU": f"libmindspore_gpu.so.{CUDA}"}
# What the GPU back end links to; one library holds all functions, the others name it as needed.
CUDA_NAMES = ("libcuda.so.1", "libcudart.so.11.0", "libcudnn.so.8", "libcublas.so.11") + (
    ("libcufft.so.10", "libcurand.so.10", "libcusolver.so.11", "libcusparse.so.11")
    + ("libnvrtc.so.11.2", "libcublasLt.so.11")
)
# Functions that MindSpore looks up by name while it runs.
LOOKED_UP = {"HcomSetGradFusionByIndex", "HcomSetGradFusionBySize"}
ACLNN_MEMORY = ("InitHugeMemThreadLocal", "UnInitHugeMemThreadLocal", "ReleaseHugeMem") + (
    ("InitPTACacheThreadLocal", "UnInitPTACacheThreadLocal")
)
CANN_NAMES = ("libopapi.so", "libhccl.so", "libruntime.so", "libprofapi.so", "libascend_hal.so") + (
    ("libacl_tdt_queue.so", "libacl_tdt_channel.so", "libacl_op_compiler.so")
)


def explain_missing() -> str:
    """Why no stub library can be built on this machine; empty if it can."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"a dry run needs Linux on x86-64, not {sys.platform} on {platform.machine()}"
    missing = [tool for tool in TOOLS if not shutil.which(tool)]
    if missing:
        return (
            f"a dry run needs {', '.join(missing)}: install gcc, g++ and binutils "
            "(apt-get install g++)"
        )
    return ""


def build_stubs(kind: str, cache: Path) -> Path:
    """The folder of the stub libraries of `Ascend` or `GPU`, built in `cache` if it is not there.

    The folder's name has MindSpore's version and a checksum of the sources. Raises ValueError if
    this machine cannot build them.
    """
    reason = explain_missing()
    if reason:
        raise ValueError(reason)
    version = importlib.metadata.version("mindspore")
    back_end = find_wheel() / "lib" / "plugin" / BACK_ENDS[kind]
    if not back_end.is_file():
        raise ValueError(f"a dry run needs {back_end.name}, which MindSpore {version} here lacks")
    folder = cache / f"{kind.lower()}-{version}-{compute_checksum()}"
    if folder.is_dir():
        return folder
    with report_write_errors(cache, "the stub libraries of a dry run"):
        cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as temporary:
        building = Path(temporary) / "stubs"
        building.mkdir()
        build_chip(building)
        {"Ascend": build_cann, "GPU": build_cuda}[kind](building)
        try:
            building.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster
                raise
    return folder


def compute_checksum() -> str:
    """Of what the libraries are built from."""
    files = sorted(path for path in SOURCES.glob("*_stubs.*")) + [SOURCES / "chip.cc"]
    content = b"".join(path.read_bytes() for path in [*files, Path(__file__)])
    return hashlib.sha256(content).hexdigest()[:12]


def find_wheel() -> Path:
    """The folder of the installed MindSpore, which is not imported."""
    return Path(importlib.util.find_spec("mindspore").origin).parent


def run_tool(*words: object, text: str = None) -> str:
    """The output of a tool; ValueError with its first line of complaint if it fails."""
    command = [str(word) for word in words]
    done = subprocess.run(command, input=text, capture_output=True, text=True, errors="replace")
    if done.returncode:
        complaint = (done.stderr.strip().splitlines() or ["no output"])[0]
        raise ValueError(f"a dry run's stub libraries: {command[0]} failed: {complaint}")
    return done.stdout


def build_chip(folder: Path) -> None:
    """The preloaded library that sets the chip and the number of cores."""
    compile_library("g++", folder / "libchip.so", SOURCES / "chip.cc", "-ldl")


def compile_library(compiler: str, target: Path, *words: object) -> None:
    old_strings = "-D_GLIBCXX_USE_CXX11_ABI=0"  # as the wheel is built
    name = f"-Wl,-soname,{target.name}"
    run_tool(compiler, "-w", "-shared", "-fPIC", old_strings, "-o", target, *words, name)


def list_symbols(path: Path, kind: str) -> set[str]:
    """Names of dynamic symbols; `kind` is `--undefined-only` or `--defined-only`."""
    lines = run_tool("nm", "-D", kind, path).splitlines()
    return {line.split()[-1].split("@")[0] for line in lines if line.strip()}


def list_undefined(libraries: Iterable[Path]) -> set[str]:
    return set().union(*(list_symbols(path, "--undefined-only") for path in libraries))


def list_functions(source: Path) -> set[str]:
    """The functions that a C or C++ source has a body for."""
    text = source.read_text()
    return set(re.findall(r"(\w+)\([^()]*\) *\{", text)) | set(
        re.findall(r"^[A-Z_]+\((cudnn\w+)", text, re.MULTILINE)  # by a macro
    )


def build_cann(folder: Path) -> None:
    """CANN: the undefined symbols of the Ascend back end, and what it looks up by name."""
    lib = folder / "cann" / "lib64"  # MindSpore looks for these names in the path
    lib.mkdir(parents=True)
    plugin = find_wheel() / "lib" / "plugin"
    libraries = [
        plugin / BACK_ENDS["Ascend"],
        plugin / "libmindspore_ops_ascend.so",
        *(plugin / "ascend").rglob("*.so"),
    ]
    own = list_functions(SOURCES / "ascend_stubs.cc")
    linked = list_undefined(libraries) - list_defined()
    linked = {name for name in linked if not name.startswith(("_ITM", "_ZTH", "__g", "_Py", "Py"))}
    by_name = LOOKED_UP | find_looked_up_names(libraries)
    aclnn = {name for name in by_name if name.startswith("aclnn")} | {"aclnnInit", "aclnnFinalize"}
    aclnn |= {f"{name}GetWorkspaceSize" for name in aclnn} | set(ACLNN_MEMORY)
    source = (SOURCES / "ascend_stubs.cc").read_text()
    other = "\n".join(write_c_stub(name) for name in sorted(by_name - aclnn - linked - own))
    (folder / "own.cc").write_text(f'{source}\nextern "C" {{\n{other}\n}}\n')
    (folder / "linked.s").write_text(write_assembly(sorted(linked - own)))
    (folder / "aclnn.c").write_text("\n".join(map(write_c_stub, sorted(aclnn - linked))))
    base = lib / "libascendcl.so"
    compile_library("g++", base, folder / "own.cc", folder / "linked.s")
    needed = {name for path in libraries for name in list_needed(path)}
    needed -= {path.name for path in find_wheel().rglob("*.so*")} | set(list_system_libraries())
    needed -= {"libascendcl.so"} | {name for name in needed if name.startswith("ld-")}
    for name in sorted(needed | set(CANN_NAMES)):
        code = [folder / "aclnn.c"] if name == "libopapi.so" else []
        add_library(lib / name, base, *code)


def find_looked_up_names(libraries: Iterable[Path]) -> set[str]:
    """Names of CANN functions among the strings of the back end."""
    pattern = rb"\0((?:acl|Hccl|Hcom|rt)[A-Za-z0-9_]{3,80})(?=\0)"
    return {name.decode() for path in libraries for name in re.findall(pattern, path.read_bytes())}


def write_c_stub(name: str) -> str:
    """A function that returns 0, or, if it creates something, a pointer."""
    creates = "Create" in name and not name.startswith(("aclrtCreate", "aclrtAllocatorCreate"))
    if creates and not name.startswith("aclnn"):
        return f"void* {name}(){{extern void* malloc(unsigned long);return malloc(256);}}"
    return f"int {name}(){{return 0;}}"


def write_assembly(names: list[str]) -> str:
    """C++ functions by their mangled names. Those that return an object return an empty one."""
    plain = run_tool("c++filt", text="\n".join(names)).splitlines()
    lines = [".text"]
    for name, readable in zip(names, plain):
        code = write_instructions(readable)
        lines += [f".globl {name}", f".type {name},@function", f"{name}:", code]
    end = ['.section .rodata\nempty: .string ""', '.section .note.GNU-stack,"",@progbits', ""]
    return "\n".join(lines + end)


RETURNS_OBJECT = re.compile(
    r"ge::(Tensor::GetTensorDesc|TensorDesc::Get(Shape|OriginShape)|Operator::GetOutputDesc"
    r"|OperatorFactory::CreateOperator|GNode::GetName)"
)


def write_instructions(readable: str) -> str:
    """x86-64 instructions for a function with this demangled name."""

    def clear(words: int) -> str:  # the object whose address is in rdi
        return "".join(f" movq $0,{8 * i}(%rdi)\n" for i in range(words))

    constructor = re.match(r"ge::(\w+)::(\w+)\(", readable)
    if constructor and constructor[1] == constructor[2]:
        return clear(3 if constructor[1] == "Operator" else 2) + " ret"
    if RETURNS_OBJECT.match(readable):
        return clear(3 if "CreateOperator" in readable else 2) + " movq %rdi,%rax\n ret"
    if "GetString() const" in readable:
        return " leaq empty(%rip),%rax\n ret"
    return " xorl %eax,%eax\n ret"


def list_system_libraries() -> dict[str, str]:
    """Name -> path of what the loader knows."""
    loader = shutil.which("ldconfig") or "/sbin/ldconfig"
    lines = run_tool(loader, "-p").splitlines()[1:]
    return {line.split()[0]: line.split()[-1] for line in lines if "x86-64" in line}


def list_defined() -> set[str]:
    """Symbols of the wheel, of the C and C++ libraries, and of Python."""
    known = list_system_libraries()
    files = [path.relative_to(find_wheel()) for path in find_wheel().rglob("*.so*")]
    paths = [find_wheel() / path for path in files if "gpu" not in str(path)]
    paths += [Path(known[f"lib{name}"]) for name in SYSTEM if f"lib{name}" in known]
    paths += Path(sys.base_prefix, "lib").glob("libpython*.so*")
    return set().union(*(list_symbols(path, "--defined-only") for path in paths))


def list_needed(path: Path) -> list[str]:
    return re.findall(r"NEEDED.*\[(.*)\]", run_tool("readelf", "-d", path))


def add_library(target: Path, base: Path, *code: Path) -> None:
    """A library that needs `base`, with the functions of `code`, if any."""
    words = code or ["-nostdlib", "-x", "c", os.devnull]
    compile_library("gcc", target, "-Wl,--no-as-needed", base, *words)


def build_cuda(folder: Path) -> None:
    """CUDA: one library with every function, the others empty, and a compiler that says 11.6."""
    lib, tools = folder / "lib64", folder / "bin"
    lib.mkdir()
    tools.mkdir()
    plugin = find_wheel() / "lib" / "plugin"
    libraries = [plugin / BACK_ENDS["GPU"]]
    libraries += [path for name in ("gpu", f"gpu{CUDA}") for path in (plugin / name).glob("*.so*")]
    vendor = re.compile(r"(cuda|cudnn|cublas|cufft|curand|cusolver|cusparse|nvrtc|cu[A-Z])")
    own = list_functions(SOURCES / "cuda_stubs.c")
    names = sorted(name for name in list_undefined(libraries) - own if vendor.match(name))
    text = (SOURCES / "cuda_stubs.c").read_text() + "\n".join(map(write_cuda_stub, names)) + "\n"
    (folder / "cuda.c").write_text(text)
    base = lib / "libcuda.so.1"
    compile_library("gcc", base, folder / "cuda.c")
    for name in CUDA_NAMES:
        if name != base.name:
            add_library(lib / name, base)
    (lib / f"libcudart.so.{CUDA}.55").symlink_to("libcudart.so.11.0")
    (folder / "version.json").write_text('{"cuda": {"version": "11.6.55"}}\n')
    compiler = tools / "nvcc"
    compiler.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {CUDA}, V11.6.55'\n")
    compiler.chmod(0o755)


def write_cuda_stub(name: str) -> str:
    """A function that returns 0, or, if it creates something, stores a pointer first."""
    if "Create" in name:
        return f"int {name}(void **made) {{ *made = malloc(256); return 0; }}"
    return f"int {name}(void) {{ return 0; }}"

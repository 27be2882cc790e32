"""Rules of the source: import directions, layers, no work at import, context, names."""

import ast
from pathlib import Path

import pytest

from utils.config import ROOT
from utils.networks import list_networks

SOURCES = sorted(
    path
    for folder in [*list_networks(), "utils", "scripts"]
    for path in (ROOT / folder).rglob("*.py")
    if "tests" not in path.parts
)
# What a file of a network may import, besides the standard library and its own network.
ALLOWED = {
    "lr_generator.py": {"numpy", "utils"},
    "convert.py": {"re"},
    "config.py": {"utils"},
    "loss.py": {"mindspore"},
    "model.py": {"mindspore", "numpy", "utils"},
}


UTILS = [path for path in SOURCES if path.is_relative_to(ROOT / "utils")]
# The layers of utils/ from top to bottom.
LAYERS = [
    {"cli"},
    {"build_networks", "commands", "predict_jobs", "networks", "simulation"},
    {"export"},
    {"testing"},
    {"train", "evaluate"},
    {"data"},
    {"distributed"},
    {"weights"},
    {"log"},
    {"runtime"},
    {"config", "plotting"},
    {"nn", "video", "signals", "processes", "process_pool", "files", "messages", "text_files"}
    | {"yaml_text", "build_settings", "usage", "cpu_cores"},
]


def list_imports(path: Path) -> list:
    """Returns the modules that a file imports at run time, as dotted names."""
    names = []
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_imports_no_other_network(path):
    home = path.relative_to(ROOT).parts[0]
    for name in list_imports(path):
        top = name.split(".")[0]
        assert top != "torch", name
        assert top != "scripts" or home == "scripts", name
        assert not name.startswith("mindspore.mint"), name
        if top in list_networks():
            assert top == home or home == "scripts", f"{path.name} imports {name}"


def find_layer(module: str) -> int:
    """Returns the index of a module's layer, from the top."""
    names = module.split(".")
    # A dataclass and arithmetic; it imports no other module of the project.
    if module.startswith("utils.distributed.cost_model"):
        return len(LAYERS) - 1
    return next(index for index, layer in enumerate(LAYERS) if names[1] in layer)


@pytest.mark.parametrize("path", UTILS, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_of_utils_imports_from_its_own_layer_or_below(path):
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for name in list_imports(path):
        if name.startswith("utils."):
            assert find_layer(name) >= find_layer(module), f"{module} imports {name}"


@pytest.mark.parametrize("network", list_networks())
@pytest.mark.parametrize("name", ALLOWED)
def test_a_file_of_a_network_imports_only_what_it_needs(network, name):
    path = ROOT / network / name
    third_party = {"mindspore", "numpy", "cv2", "PIL", "yaml", "tqdm", "utils", "scipy"}
    used = {n.split(".")[0] for n in list_imports(path)} & third_party
    assert used <= ALLOWED[name] | ({"mindspore"} if name == "model.py" else set())


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_does_no_work_at_import(path):
    """A module has only definitions, constants, imports and assignments."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Expr):
            assert isinstance(node.value, ast.Constant), ast.unparse(node)
        assert not isinstance(node, (ast.For, ast.While, ast.With)), ast.unparse(node)


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_only_runtime_and_gradient_fusion_set_the_context(path):
    calls = {
        node.func.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        # The seed of a data pipeline is not part of the context.
        and ast.unparse(node.func) != "ds.config.set_seed"
    }
    setters = {"set_device", "set_seed", "set_auto_parallel_context"} & calls
    assert not setters or path.name in ("runtime.py", "gradient_fusion.py")


# These words had several meanings in earlier versions.
BANNED = {"room", "tape", "crew", "told", "foretell", "foretold", "share", "place", "found"}


def list_names(path: Path) -> set[str]:
    """Returns the functions, classes, parameters and variables that a file defines."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(getattr(node, "ctx", None), ast.Store):
            names.add(getattr(node, "id", "") or getattr(node, "attr", ""))
    return names


@pytest.mark.parametrize("folder", [*list_networks(), "utils", "scripts", "benchmarks", "tests"])
def test_no_name_is_a_banned_word(folder):
    for path in (ROOT / folder).rglob("*.py"):
        banned = {name for name in list_names(path) if name.lower().rstrip("s") in BANNED}
        assert not banned, f"{path.relative_to(ROOT)} defines {banned}"

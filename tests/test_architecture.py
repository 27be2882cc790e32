"""Rules of the source that import-linter and ruff have not: no work at import, context, devices.

The directions of imports are contracts in pyproject.toml.
"""

import ast
from pathlib import Path

from utils.files import ROOT
from utils.networks import list_networks

SOURCES = sorted(
    path
    for folder in [*list_networks(), "utils", "scripts"]
    for path in (ROOT / folder).rglob("*.py")
    if "tests" not in path.parts and path.stat().st_size
)


def list_imports(path: Path) -> list:
    """Returns the modules that a file imports at run time, as dotted names."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def test_every_folder_of_the_checkout_with_modules_is_a_regular_package():
    """Without `__init__.py` a package of the same name elsewhere on the path is found instead."""
    names = [*list_networks(), "utils", "scripts", "benchmarks", "tests"]
    assert not [name for name in names if not (ROOT / name / "__init__.py").is_file()]


def test_a_module_does_no_work_at_import():
    """A module has only definitions, constants, imports and assignments.

    An entry point prepares the environment, because it imports MindSpore next.
    """
    for path in SOURCES:
        for node in ast.parse(path.read_text()).body:
            text = ast.unparse(node)
            is_allowed = text == PREPARE or text.startswith("refuse_command(")
            if isinstance(node, ast.Expr) and not is_allowed:
                assert isinstance(node.value, ast.Constant), ast.unparse(node)
            assert not isinstance(node, (ast.For, ast.While, ast.With, ast.Try)), ast.unparse(node)
            if isinstance(node, ast.If):
                allowed = ("TYPE_CHECKING", "__name__ == '__main__'", IS_ZOO, IS_OTHER)
                assert ast.unparse(node.test) in allowed


def test_a_module_asks_types_and_not_whether_an_attribute_exists():
    """No `hasattr`, no `getattr` with a default, no `__getattr__`."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                assert node.name != "__getattr__", node.lineno
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                name = node.func.id
                assert name != "hasattr", ast.unparse(node)
                assert name != "getattr" or len(node.args) == 2, ast.unparse(node)


# The package is imported before the script of its command.
IS_OTHER = "ROOT != CODE and other and (ROOT not in Path(str(other.__file__)).parents)"
IS_ZOO = "os.path.basename(sys.argv[0]) == 'zoo' or sys.argv[0].startswith(FOLDER)"
PREPARE = "prepare_process(__name__)"


def test_only_runtime_sets_the_context():
    """The seed of a data pipeline is not part of it. Nothing sets an auto-parallel context."""
    setters = {"set_context", "set_device", "set_seed"}
    for path in SOURCES:
        nodes = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
        calls = {ast.unparse(node.func) for node in nodes} - {"ds.config.set_seed"}
        names = {call.rpartition(".")[2] for call in calls}
        assert "set_auto_parallel_context" not in names, path
        assert path.name == "runtime.py" or not names & setters, path


MODEL_FILES = [ROOT / "utils" / "nn" / name for name in ("layers.py", "conv3d.py", "dropout.py")]
# Entry points and settings name the device; they build nothing themselves.
NOT_MODELS = {"train.py", "eval.py", "export.py", "config.py", "labels.py"}
NOT_MODELS |= {"network.py"}
MODEL_FILES += [
    path
    for network in list_networks()
    for path in sorted((ROOT / network).glob("*.py"))
    if path.name not in NOT_MODELS
]
DEVICE_WORDS = {"cpu", "on_ascend", "ascend", "is_ascend", "device", "device_target", "get_context"}


def test_a_layer_or_network_has_no_branch_on_devices_or_precision():
    """`utils.nn.kernels` chooses its operators. A test for uint8 is about pixels, not precision."""
    for path in MODEL_FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            name = getattr(node, "id", "") or getattr(node, "attr", "") or getattr(node, "name", "")
            assert str(name).lower() not in DEVICE_WORDS, f"line {node.lineno}: {name}"
            if isinstance(node, ast.Compare):
                text = ast.unparse(node)
                assert ".dtype" not in text or "uint8" in text, f"line {node.lineno}: {text}"


def test_no_module_of_a_network_names_a_back_end():
    for path in MODEL_FILES:
        for name in list_imports(path):
            assert not name.startswith(("utils.nn.kernels.ascend", "utils.nn.kernels.cpu")), name

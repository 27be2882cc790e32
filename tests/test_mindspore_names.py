"""Every name of MindSpore that the zoo uses, private or not: what to mend for another version.

If conftest.py cannot be imported, `pytest --noconftest` runs this test.
"""

import ast
import functools
import inspect
from collections.abc import Iterator
from pkgutil import resolve_name

from utils.files import ROOT
from utils.networks import list_networks


def list_names(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """The dotted names that are imported, read or set, and whether the code sets the name.

    It does not see names in strings, nor the attributes of what a program creates.
    """
    origins = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            prefix = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                name = prefix + alias.name
                yield name, False
                top = name if prefix else name.partition(".")[0]  # `import a.b` binds a
                origins[alias.asname or top.rpartition(".")[2]] = name if alias.asname else top
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            first, _, rest = ast.unparse(node).partition(".")
            yield f"{origins.get(first, first)}.{rest}", isinstance(node.ctx, ast.Store)


@functools.cache
def exists(name: str, is_set: bool) -> bool:
    """Whether MindSpore has the name, or, if the zoo sets it, whether MindSpore's code reads it."""
    owner, _, attribute = name.rpartition(".")
    try:
        if is_set:
            return attribute in inspect.getsource(resolve_name(owner))
        resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def test_mindspore_has_every_name_that_the_zoo_uses():
    folders = [*list_networks(), "utils", "scripts", "benchmarks", "tests"]
    paths = [ROOT / "conftest.py"]
    paths += [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    uses = {
        (*use, str(path.relative_to(ROOT)))
        for path in paths
        if "mindspore" in path.read_text()
        for use in list_names(ast.parse(path.read_text()))
        if use[0].startswith("mindspore.") and use[0].replace(".", "").isidentifier()
    }
    assert ("mindspore.Parameter.init_param", True, "utils/inference/checkpoint.py") in uses
    missing = sorted(f"{name} in {file}" for name, sets, file in uses if not exists(name, sets))
    assert not missing, "MindSpore does not have\n" + "\n".join(missing)

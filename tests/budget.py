"""Measures the size of the project and fails above its limits; scripts/run_tests.sh runs it.

    python tests/budget.py

A code line is a line with code: no blank line, comment or docstring. What a training loads is
counted at its end, by a training of one epoch on a few synthetic videos; what an evaluation opens,
by one of its checkpoint. Whoever adds above a limit, removes as much.
"""

import ast
import io
import os
import re
import subprocess
import sys
import tempfile
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


# Guides are the English pages of docs/; a file in no other folder counts as a script.
LIMITS = {
    "code lines of the networks": 4000,
    "code lines of utils": 11200,
    "code lines of scripts": 5400,
    "code lines of benchmarks": 1300,
    "functions": 1750,
    "files": 215,
    "lines of tests": 25000,
    "words of the guides": 20000,
    "lines of JavaScript and HTML": 700,
    "files that a training loads": 70,
    "code lines that a training loads": 7000,
    "times that eval.py opens the checkpoint": 2,
}
LEAST_MEAN = 12  # code lines of a function
NETWORKS = ("x3d", "tsm", "mvit_multi", "resnet50")
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
LAYOUT |= {tokenize.ENDMARKER}
# Runs a script, and prints at its end the files of the project that are loaded, and how often it
# has opened the file WATCHED. MindSpore ends by os._exit.
PROBE = """
import atexit, os, runpy, sys
opened = []
def note(event, args):
    if event == "open" and str(args[0]).endswith(os.environ["WATCHED"]):
        opened.append(args[0])
def report():
    files = {getattr(module, "__file__", None) or "" for module in [*sys.modules.values()]}
    own = (f for f in files if f.startswith(os.getcwd() + os.sep) and ".venv" not in f)
    print("OPENED", len(opened), "LOADED", *own, sep="\\n", file=sys.stderr, flush=True)
sys.addaudithook(note)
atexit.register(report)
leave = os._exit
os._exit = lambda status: (report(), leave(status))
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def list_files(*patterns: str) -> list[str]:
    """The files in Git whose names match."""
    names = subprocess.check_output(["git", "ls-files", *patterns], cwd=ROOT, text=True)
    return [name for name in names.splitlines() if (ROOT / name).is_file()]


def count_code_lines(source: str) -> int:
    lines, texts = set(), set()
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None:
            texts |= {*range(node.body[0].lineno, node.body[0].end_lineno + 1)}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT:
            lines |= {*range(token.start[0], token.end[0] + 1)}
    return len(lines - texts)


def run_script(*command: str) -> str:
    """What a script printed to stderr, with the report of PROBE at the end."""
    values = {**os.environ, "WATCHED": "epoch_001.ckpt"}
    words = [sys.executable, "-c", PROBE, *command]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, env=values)
    if done.returncode:
        sys.exit(f"{command[0]}: exit status {done.returncode}: {done.stderr[-1000:]}")
    return done.stderr


def measure_runs() -> tuple[int, int, int]:
    """Files and code lines that a training loads, and times that eval.py opens its checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        data = [f"--data.root={folder}/data", "--data.batch=4", "--data.workers=1"]
        make = ["scripts/data/synthesize_videos.py", "--out", f"{folder}/data"]
        run_script(*make, "--train", "1", "--test", "1")
        short = ["--train.epochs=1", "--train.warmup_epochs=0", f"--run.out={folder}/run"]
        recipe = "tsm/configs/tsm_smoke.yaml"
        text = run_script("tsm/train.py", "--config_path", recipe, *short, *data)
        loaded = {
            Path(line) for line in text.split("LOADED\n")[-1].splitlines() if line[-3:] == ".py"
        }
        checkpoint = f"{folder}/run/epoch_001.ckpt"
        text = run_script("tsm/eval.py", "--checkpoint_path", checkpoint, *data)
    opened = int(re.findall(r"OPENED\n(\d+)", text)[-1])
    return len(loaded), sum(count_code_lines(file.read_text()) for file in loaded), opened


def measure() -> dict[str, int]:
    sizes = dict.fromkeys(LIMITS, 0)
    for name in list_files("*.py"):
        source, parts = (ROOT / name).read_text(), Path(name).parts
        if "tests" in parts or parts[-1] == "conftest.py":
            sizes["lines of tests"] += len(source.splitlines())
            continue
        shelf = "the networks" if parts[0] in NETWORKS else parts[0]
        if shelf not in ("the networks", "utils", "benchmarks"):
            shelf = "scripts"
        sizes[f"code lines of {shelf}"] += count_code_lines(source)
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        sizes["functions"] += sum(isinstance(n, kinds) for n in ast.walk(ast.parse(source)))
        sizes["files"] += 1
    guides = sorted((ROOT / "docs").glob("*.md"))
    sizes["words of the guides"] = sum(len(file.read_text().split()) for file in guides)
    pages = [(ROOT / name).read_text() for name in list_files("*.js", "*.html")]
    sizes["lines of JavaScript and HTML"] = sum(len(page.splitlines()) for page in pages)
    last_three = [*LIMITS][-3:]
    return {**sizes, **dict(zip(last_three, measure_runs()))}


def main() -> None:
    sizes = measure()
    above = [name for name, size in sizes.items() if size > LIMITS[name]]
    for name, size in sizes.items():
        print(f"{name:40s} {size:6d}  limit {LIMITS[name]:6d}")
    code = sum(size for name, size in sizes.items() if name.startswith("code lines of "))
    mean = code / sizes["functions"]
    print(f"{'code lines of a function':40s} {mean:6.1f}  least {LEAST_MEAN:6.1f}")
    if mean < LEAST_MEAN:
        above += ["code lines of a function (below)"]
    if above:
        sys.exit(f"above the limit: {', '.join(above)}; remove as much as you add")


if __name__ == "__main__":
    main()

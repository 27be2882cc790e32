"""Builds the wheel: in it, modules import each other by the name of the package.

`from utils.files import ROOT` becomes `from mindspore_video_zoo.utils.files import ROOT`, so that a
program may have modules of its own with these names. pyproject.toml has all else. An editable
installation uses the files of the checkout as they are.
"""

import re
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

NETWORKS = [path.parent.name for path in Path().glob("*/network.py")]
OWN = "|".join(["benchmarks", "scripts", "utils", *NETWORKS])
IMPORT = re.compile(rf"^( *)from ({OWN})(?=[. ])", re.MULTILINE)


class BuildPackage(build_py):
    def build_module(self, module, module_file, package):
        copied = super().build_module(module, module_file, package)
        file = Path(copied[0])
        file.write_text(
            IMPORT.sub(r"\1from mindspore_video_zoo.\2", file.read_text("utf-8")), "utf-8"
        )
        return copied


if __name__ == "__main__":
    setup(cmdclass={"build_py": BuildPackage})

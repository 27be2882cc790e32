#!/usr/bin/env bash
# usage: bash scripts/run_tests.sh [--latest] [pytest arguments, for example -m slow]
#
# Lint, types, directions of imports, the size of the project and the whole test suite, after the same environment step as
# the quickstart; minutes.
#
# --latest: in a new environment, .venv-latest, with the newest versions that requirements.txt and
# requirements-dev.txt allow, instead of those of constraints.txt. Lists the packages whose version
# differs, then runs the same.
#
# Tests of the demo page are skipped without Gradio, which is not installed: 250 MB, and a Pillow
# below 13. .venv/bin/pip install 'gradio>=6.31,<7' 'numpy<2' adds it.
set -euo pipefail
if [ "${1:-}" = --latest ]; then
    latest=1
    ZOO_VENV=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)/.venv-latest
    export ZOO_VENV # for the scripts that the tests start
    shift
fi
# shellcheck source=scripts/env.sh
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
if [ -n "${latest:-}" ]; then
    rm -rf "$VENV"
    VERSIONS=()
fi
install requirements.txt
install requirements-dev.txt requirements.txt # both: the ranges of one must fit the other
cd "$ROOT"
if [ -n "${latest:-}" ]; then
    echo "the packages that differ from constraints.txt, in its versions:"
    python -m pip install --dry-run --constraint=constraints.txt --requirement=requirements.txt \
        --requirement=requirements-dev.txt | grep "^Would install" || true
fi
ruff check .
ruff format --check .
mypy
bash scripts/check_imports.sh
for script in scripts/*.sh scripts/cluster/*.sh .ci/run; do bash -n "$script"; done
shellcheck --external-sources scripts/*.sh scripts/cluster/*.sh .ci/run
git rev-parse --git-dir > /dev/null 2>&1 && python tests/budget.py # the files are those in Git
exec python -m pytest -n 3 --dist worksteal "$@"

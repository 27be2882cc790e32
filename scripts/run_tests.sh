#!/usr/bin/env bash
# usage: bash scripts/run_tests.sh [pytest arguments, for example -m slow]
#
# Lint and the whole test suite, after the same environment step as the quickstart; minutes.
set -euo pipefail
# shellcheck source=scripts/env.sh
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
install requirements.txt
install requirements-dev.txt requirements.txt # both: what one asks for must fit the other
cd "$ROOT"
ruff check .
ruff format --check .
for script in scripts/*.sh .ci/run; do bash -n "$script"; done
shellcheck --external-sources scripts/*.sh .ci/run
exec python -m pytest -n 2 "$@"

#!/usr/bin/env bash
# usage: bash scripts/check_imports.sh
#
# Checks the directions of imports: the contracts in pyproject.toml. import-linter sees only folders
# with an __init__.py, and inner folders have none, so it reads a temporary copy that has them.
set -euo pipefail
# shellcheck source=scripts/env.sh
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
export PATH="$VENV/bin:$PATH"
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cd "$ROOT"
for folder in benchmarks scripts utils */network.py; do
    find "${folder%/network.py}" -name '*.py' -not -path '*/tests/*' -exec cp --parents -t "$copy" {} +
done
find "$copy" -mindepth 1 -type d -exec touch {}/__init__.py \;
cp pyproject.toml "$copy"
cd "$copy"
lint-imports --no-logo --no-cache

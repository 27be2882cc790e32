#!/usr/bin/env bash
# usage: bash scripts/quickstart.sh [--device CPU|GPU|Ascend]
#
# The zoo at work on any CPU: makes the environment, draws videos, trains TSM and the same
# network without the shift, evaluates both, prints a table and, last, the command that shows both
# in a browser. Two to five minutes on two cores after the installation. Writes .venv,
# data/synthetic, out/quickstart_tsm and out/quickstart_tsn; what is done already is not done again.
# --device GPU installs CUDA too if it is missing (scripts/env.sh).
set -euo pipefail
# shellcheck source=scripts/env.sh
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
case "$*" in
    "--device GPU" | --device=GPU) install_cuda ;;
    "" | --device[=\ ]CPU | --device[=\ ]Ascend) install requirements.txt ;;
    *)
        say "error: $*: the quickstart takes --device CPU, GPU or Ascend; --help says what it does"
        exit 2
        ;;
esac
exec python "$ROOT/scripts/quickstart.py" "$@"

#!/usr/bin/env bash
# usage: bash scripts/quickstart.sh
#
# The zoo at work on any CPU: makes the environment, draws real videos, trains TSM and the same
# network without the shift, evaluates both, prints a table and, last, the command that shows both
# in a browser. Two to three minutes on two cores after the installation. Writes .venv,
# data/synthetic, out/quickstart_tsm and out/quickstart_tsn; what is done already is not done again.
# Takes no arguments.
set -euo pipefail
# shellcheck source=scripts/env.sh
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
if [ $# -gt 0 ]; then
    say "error: $1: the quickstart takes no arguments; --help says what it does"
    exit 2
fi
install requirements.txt
exec python "$ROOT/scripts/quickstart.py"

#!/usr/bin/env bash
# The zoo at work on any CPU: makes the environment, draws real videos, trains TSM and its twin
# without the shift, evaluates both and prints a table.
#
#     bash scripts/quickstart.sh
set -euo pipefail
# shellcheck source=scripts/env.sh
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
install requirements.txt
exec python "$ROOT/scripts/quickstart.py" "$@"

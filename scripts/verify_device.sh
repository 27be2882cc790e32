#!/usr/bin/env bash
# usage: bash scripts/verify_device.sh [--devices 8] [--only PART[,PART]] [--out FOLDER]
#        [--device Ascend|GPU|CPU] [--rehearse [--chip ascend910b]] [--timeout SECONDS]
#
# Verifies the zoo on the devices of this host, in about an hour, and writes out/verify_device/
# report.md and report.json, to be attached to an issue. Parts, in order: environment, parity,
# training, speed, convolutions, communication, overlap, resume.
#
# Without an Ascend or a GPU it is a rehearsal on the CPU; --rehearse adds dry runs for a chip.
# python scripts/analysis/verify_device.py --help prints more.
set -euo pipefail
# shellcheck source=scripts/env.sh
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
install requirements.txt
exec python "$ROOT/scripts/analysis/verify_device.py" "$@"

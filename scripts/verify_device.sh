#!/usr/bin/env bash
# usage: bash scripts/verify_device.sh [--devices 8] [--only PART[,PART]] [--out FOLDER]
#        [--device Ascend|GPU|CPU] [--timeout SECONDS]
#
# Verifies the zoo on the devices of this host, in less than an hour, and writes out/verify_device/
# report.md and report.json, to be attached to an issue. Parts, in order: parity, training,
# communication, resume.
#
# Without an Ascend or a GPU it is a rehearsal on the CPU.
# python scripts/verify_device/verify_device.py --help prints more.
set -euo pipefail
# shellcheck source=scripts/env.sh
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
install requirements.txt
exec python "$ROOT/scripts/verify_device/verify_device.py" "$@"

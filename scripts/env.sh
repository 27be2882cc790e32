#!/usr/bin/env bash
# usage: bash scripts/env.sh --gpu
#
# Prepares .venv for an NVIDIA GPU: with a CUDA 11.1 to 11.8 in CUDA_HOME that works, or with CUDA 11.8
# of requirements-gpu.txt. Needs Linux on x86-64 and the driver. After it, every script of this folder
# and, after `source .venv/bin/activate`, every python command can use the GPU.

ROOT=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
export ROOT
# The other scripts source this file: it finds Python, makes .venv, installs what is missing, and puts
# the environment first on PATH, which msrun's workers need. ZOO_VENV names another folder than .venv.
VENV=${ZOO_VENV:-$ROOT/.venv}
VERSIONS=("--constraint=$ROOT/constraints.txt") # empty: the newest that the requirements allow

say() { echo "$*" >&2; }

fits() { # PYTHON: 3.10 to 3.12, with venv
    "$1" -c 'import sys, venv; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null
}

find_python() { # prints the first fitting interpreter; ZOO_PYTHON wins
    local candidate
    if [ -n "${ZOO_PYTHON:-}" ]; then
        fits "$ZOO_PYTHON" && echo "$ZOO_PYTHON" && return
        say "ZOO_PYTHON=$ZOO_PYTHON is not a Python 3.10 to 3.12 with the venv module"
        return 2
    fi
    for candidate in python3.11 python3.12 python3.10 python3 python; do
        fits "$candidate" && echo "$candidate" && return
    done
    say "no fitting Python: MindSpore needs Python 3.10 to 3.12 with the venv module; install one," \
        "or name it in ZOO_PYTHON"
    return 2
}

usage() { # the comment at the head of the script that sources this
    sed -n '2,/^[^#]/{/^#SBATCH/d;s/^# \{0,1\}//p}' "$0"
}

misused() { # by its caller, who gave too few arguments
    usage >&2
    exit 2
}

checksum() { # FILE...: of their contents
    cat "$@" | cksum
}

install() { # REQUIREMENTS...: into $VENV, unless the same ones are there already
    local expected python files=()
    local stamp="$VENV/installed-${1%.txt}"
    for file in "$@"; do files+=("$ROOT/$file"); done
    expected=$(checksum "${files[@]}" "$ROOT/constraints.txt")
    if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$expected" ]; then
        if [ ! -x "$VENV/bin/python" ]; then
            python=$(find_python) || return 2
            say "making ${VENV##*/} with $("$python" --version)"
            "$python" -m venv "$VENV" || return 2
        fi
        say "installing ${*} (a few minutes the first time)"
        if ! "$VENV/bin/python" -m pip install --no-cache-dir --disable-pip-version-check \
            --quiet ${VERSIONS[@]+"${VERSIONS[@]}"} "${files[@]/#/--requirement=}" >&2; then
            say "the installation failed; the lines above give the reason (no network? is the disk full?)." \
                "Run the same command again."
            return 2
        fi
        echo "$expected" >"$stamp"
    fi
    export PATH="$VENV/bin:$PATH"
    # shellcheck source=/dev/null
    [ ! -f "$VENV/cuda/set_env.sh" ] || source "$VENV/cuda/set_env.sh"
    advise_set_env
}

install_cuda() { # requirements.txt, and CUDA for an NVIDIA GPU unless that of CUDA_HOME works
    local python="$VENV/bin/python" cuda="$ROOT/scripts/launcher/cuda.py" status=0
    local home="${CUDA_HOME:-}" # before `install` sets it
    if [ ! -x "$python" ]; then python=$(find_python) || return 2; fi
    "$python" "$cuda" driver || return 2
    install requirements.txt || return 2
    CUDA_HOME="$home" "$VENV/bin/python" "$cuda" installed "$VENV/cuda" || status=$?
    if [ $status -eq 1 ]; then
        say "CUDA_HOME has no CUDA 11.1 to 11.8 that works: CUDA 11.8 is a download of 1.7 GB, 3 GB on disk"
        install requirements-gpu.txt || return 2
        "$VENV/bin/python" "$cuda" wheels "$VENV/cuda" || return 2
    elif [ $status -ne 0 ]; then
        return 2
    fi
    if ! grep -q cuda/set_env.sh "$VENV/bin/activate"; then
        # shellcheck disable=SC2016 # activate sets VIRTUAL_ENV
        echo '[ ! -f "$VIRTUAL_ENV/cuda/set_env.sh" ] || . "$VIRTUAL_ENV/cuda/set_env.sh"' >>"$VENV/bin/activate"
    fi
    # shellcheck source=/dev/null
    source "$VENV/cuda/set_env.sh"
}

advise_set_env() { # one line on stderr if CANN is installed, but not in this environment
    local folder file
    [ -z "${ASCEND_HOME_PATH:-}" ] || return 0
    for folder in "${LOCAL_ASCEND:-/usr/local/Ascend}" "${LOCAL_ASCEND:-${HOME:-}/Ascend}"; do
        for file in "$folder"/{cann,ascend-toolkit/latest,ascend-toolkit}/set_env.sh; do
            [ -f "$file" ] || continue
            say "ASCEND_HOME_PATH is not set: for Ascend, source $file first"
            return
        done
    done
}

require_network() { # NAME: a folder with a train.py
    [ -f "$ROOT/$1/train.py" ] && return
    say "no network named $1; there are: $(cd "$ROOT" && echo */train.py | sed 's|/train.py||g')"
    exit 2
}

require_count() { # NAME VALUE: an integer above 0
    case "$2" in
        '' | *[!0-9]* | 0* | ???????*) say "$1 must be an integer above 0, not $2" && exit 2 ;;
    esac
}

case " $* " in # of the script that sources this
    *" --help "* | *" -h "*)
        usage
        exit
        ;;
esac

if [ "${BASH_SOURCE[0]}" = "$0" ]; then # not sourced
    set -euo pipefail
    [ "$*" = --gpu ] || misused
    install_cuda
    say "ready for a GPU; python scripts/check_env.py shows it"
fi

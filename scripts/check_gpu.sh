#!/usr/bin/env bash
# Check attnviz on a machine with a GPU.
#
#   scripts/check_gpu.sh pack PYTHON [PACKAGE ...]
#                                        on any machine with a package index: fill gpu-kit/ with the
#                                        wheels for that Python (as 3.12), at most 50 MiB a folder,
#                                        without the packages that the machine with the GPU has
#   scripts/check_gpu.sh [PART ...]      on the machine with the GPU: install from gpu-kit/, if it
#                                        is there, and run all parts, or some, in ten minutes
#   scripts/check_gpu.sh --rehearse      the same parts, small, on a simulated device
#
# Results go to $OUT (gpu-check/). A part that has passed is not run again: remove its log to repeat it.
# PYTHON names the interpreter that has torch (python3).
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "${1:-}" = pack ]; then
    shift
    exec "${PYTHON:-.venv/bin/python}" scripts/gpu/pack.py gpu-kit "$@"
fi
python=${PYTHON:-python3}
if [ -d gpu-kit ]; then
    # A folder on the path, not a virtual environment: that would hide the packages of another one.
    packages=${OUT:-gpu-check}/packages
    if [ ! -e "$packages/ready" ]; then
        mkdir -p "$packages/wheels"
        cp gpu-kit/wheels-*/*.whl "$packages/wheels"
        cat gpu-kit/weights-*/*.part > "$packages/wheels/$(cat gpu-kit/weights-1/name)"
        "$python" -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$packages" "$packages"/wheels/*.whl
        touch "$packages/ready"
    fi
    PYTHONPATH=$(cd "$packages" && pwd)${PYTHONPATH:+:$PYTHONPATH}
    export PYTHONPATH
fi
exec "$python" scripts/gpu/check.py --out "${OUT:-gpu-check}" "$@"

#!/usr/bin/env bash
# Check attnviz on a machine with a GPU.
#
#   scripts/check_gpu.sh pack PYTHON [PACKAGE ...]
#                                        on any machine with a package index: fill gpu-kit/ with the
#                                        wheels for that Python (as 3.12), at most 60 MiB a folder,
#                                        without the packages that the machine with the GPU has
#   scripts/check_gpu.sh [PART ...]      on the machine with the GPU: install from gpu-kit/, if it
#                                        is there, and run all parts, or some, in nine minutes
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
    environment=${OUT:-gpu-check}/environment
    if [ ! -e "$environment/ready" ]; then
        "$python" -m venv --system-site-packages "$environment"
        mkdir -p "$environment/wheels"
        cp gpu-kit/wheels-*/*.whl "$environment/wheels"
        cat gpu-kit/weights-*/*.part > "$environment/wheels/$(cat gpu-kit/weights-1/name)"
        "$environment/bin/python" -m pip install -q --no-index --no-deps --no-compile "$environment"/wheels/*.whl
        touch "$environment/ready"
    fi
    python=$environment/bin/python
fi
exec "$python" scripts/gpu/check.py --out "${OUT:-gpu-check}" "$@"

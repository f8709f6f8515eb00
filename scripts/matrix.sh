#!/usr/bin/env bash
# The wheel in fresh environments: lowest, middle and newest of everything that attnviz needs.
#
#   scripts/matrix.sh                 all three
#   scripts/matrix.sh lowest middle   some of them
#
# It needs uv, which finds or fetches each Python, and a network. Each environment gets the wheel with
# its extras, and passes `pip check`, the main command, and the tests that an installed wheel can run.
# FAST=1 leaves the tests out. Environments stay in build/matrix, to look at what failed.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
extras=$(printf -- "--extra %s " fast large parquet serve survey widget)
tools="pytest hypothesis beartype pytest-mpl pytest-xdist httpx2"

# The Python of an environment, and what uv is told about versions.
choose() {
    case $1 in
    lowest) echo "3.11 --resolution=lowest-direct" ;;
    # Beside vllm: transformers <5.21. Colab has rich 13.9.4.
    middle) echo "3.13 transformers==5.20.2 rich==13.9.4" ;;
    middle-3.12) echo "3.12 transformers==5.20.2 rich==13.9.4" ;;
    newest) echo "3.13 --resolution=highest" ;;
    *) echo "scripts/matrix.sh: no environment $1" >&2 && exit 2 ;;
    esac
}

rm -rf build/matrix/dist
uv build --quiet --out-dir build/matrix/dist
uvx --quiet twine check --strict build/matrix/dist/*
wheel=$(echo "$root"/build/matrix/dist/*.whl)
for name in ${*:-lowest middle newest}; do
    read -r python versions <<<"$(choose "$name")"
    folder=$root/build/matrix/$name
    rm -rf "$folder" && mkdir -p "$folder"
    uv venv --quiet --python "$python" "$folder/venv"
    export VIRTUAL_ENV=$folder/venv
    # shellcheck disable=SC2086  (several words)
    uv pip install --quiet -r pyproject.toml $extras $versions
    uv pip install --quiet --no-deps "$wheel"
    # shellcheck disable=SC2086
    uv pip install --quiet $tools
    uv pip check
    cd "$folder"
    venv/bin/attnviz heatmap "the train left the station" # the main command
    venv/bin/attnviz doctor --json >doctor.json
    if [ -z "${FAST:-}" ]; then
        cp -r "$root/tests" "$root/pyproject.toml" . # no source beside them
        venv/bin/pytest -n 0 -q -o filterwarnings=default \
            tests/terminal/test_commands.py tests/io tests/pipeline \
            tests/differential/test_families.py
    fi
    cd "$root"
    echo "matrix: $name passed on Python $python"
done

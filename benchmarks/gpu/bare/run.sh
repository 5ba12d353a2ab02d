#!/bin/bash
# On the GPU machine without a network, in the checkout with .gpu/: bash benchmarks/gpu/bare/run.sh [OPTION…]
#
# Unpacks what pack.sh packed, and runs the checks within nine minutes. Options are those of
# python -m benchmarks.gpu. The stand-ins for what torch 2.14 has are on the path here, and nowhere else.
set -euo pipefail
cd "$(dirname "$0")/../../.."
PYTHON=${PYTHON:-python3}
SITE=${SITE:-/tmp/rlrun-gpu-site}
START=$SECONDS
if [ ! -d "$SITE" ]; then
  mkdir -p "$SITE"
  tar -C "$SITE" -xJf .gpu/site.tar.xz
fi
export PYTHONPATH="$PWD:$PWD/benchmarks/gpu/bare/stand_ins:$SITE" PYTHONUNBUFFERED=1
export HF_HUB_OFFLINE=1 PYTHONWARNINGS=ignore::SyntaxWarning RLRUN_CACHE=/tmp/rlrun-cache
exec "$PYTHON" -m benchmarks.gpu --seconds $((540 - SECONDS + START)) "$@"

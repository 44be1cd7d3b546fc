#!/usr/bin/env bash
# Every test, on a CPU, without network:   bash test.sh   |   bash test.sh tests/test_protocol.py -k zoom
set -euo pipefail
. "$(dirname "$0")/setup.sh"
"$PYTHON" -m ruff check .
exec "$PYTHON" -m pytest "$@"

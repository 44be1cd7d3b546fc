# Sourced by speedrun.sh and test.sh: an environment in .venv, with nothing but python3 and pip to begin with.
# Nothing outside this checkout is touched: where uv is missing, it and its cache live in .uv/.
cd "$(dirname "${BASH_SOURCE[0]}")"
if command -v uv >/dev/null; then
    UV=uv
else
    UV=.uv/bin/uv
    export UV_CACHE_DIR="$PWD/.uv/cache"
    if [ ! -x "$UV" ]; then
        python3 -m venv .uv 2>/dev/null && .uv/bin/python -m pip install --quiet --disable-pip-version-check uv \
            || { rm -rf .uv; python3 -m pip install --quiet --disable-pip-version-check --target .uv uv; } # a Python without ensurepip
    fi
fi
"$UV" sync --quiet # the same versions on every machine: pyproject.toml fixes the date (exclude-newer)
PYTHON="$PWD/.venv/bin/python"
export PYTHONUNBUFFERED=1 HF_HUB_DISABLE_TELEMETRY=1

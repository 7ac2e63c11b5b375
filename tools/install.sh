#!/bin/sh
# Create a virtual environment and install the package with everything its simulators need.
# Usage: tools/install.sh VENV
set -eu
venv=$1

# Install Debian packages where we may; otherwise print the one command to run.
need_packages() {
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "installing system packages: $*"
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
    else
        echo "Missing system packages. Run this, then try again:" >&2
        echo "  sudo apt-get update && sudo apt-get install -y --no-install-recommends $*" >&2
        exit 1
    fi
}

# MetaDrive supports Python up to 3.11, this package from 3.11 on.
python=
for candidate in ${PYTHON:-} python3.11 python3; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "Python 3.11 was not found. Install it, or name it: make install PYTHON=/path/to/python3.11" >&2
    exit 1
fi

"$python" -c 'import ensurepip, venv' 2>/dev/null || need_packages python3-venv
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"

# OpenCV, which MetaDrive imports, loads these libraries.
missing=
"$python" -c 'import ctypes; ctypes.CDLL("libGL.so.1")' 2>/dev/null || missing="$missing libgl1"
"$python" -c 'import ctypes; ctypes.CDLL("libglib-2.0.so.0")' 2>/dev/null || missing="$missing libglib2.0-0"
# shellcheck disable=SC2086
[ -z "$missing" ] || need_packages $missing

"$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    --constraint constraints.txt --editable '.[metadrive,tensorboard,dev]'

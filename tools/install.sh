#!/bin/sh
# Create a virtual environment and install the package with everything its simulators need.
# Usage: tools/install.sh VENV
set -eu
cd "$(dirname "$0")/.."
venv=$1

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

# System packages: Debian keeps venv apart, and OpenCV, which MetaDrive imports, loads the two libraries.
missing=
"$python" -c 'import ensurepip, venv' 2>/dev/null || missing="$missing python3-venv"
"$python" -c 'import ctypes; ctypes.CDLL("libGL.so.1")' 2>/dev/null || missing="$missing libgl1"
"$python" -c 'import ctypes; ctypes.CDLL("libglib-2.0.so.0")' 2>/dev/null || missing="$missing libglib2.0-0"
# MuJoCo draws with EGL or OSMesa; the libraries alone, without a driver, do not draw, so it is tried.
draws() { "$python" -I -S src/vlmsafe/envs/opengl.py "$1" 2>/dev/null; }
drawing=
draws egl || draws osmesa || drawing=" libegl1 libegl-mesa0 libgl1-mesa-dri"
if [ -n "$missing$drawing" ]; then
    command="apt-get update && apt-get install -y --no-install-recommends$missing$drawing"
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "installing system packages:$missing$drawing"
        DEBIAN_FRONTEND=noninteractive sh -c "$command" >/dev/null || {
            echo "System packages could not be installed. Run this by hand, then try again:" >&2
            echo "  $command" >&2
            exit 1
        }
    elif [ -z "$missing" ]; then
        echo "Note: frames of formula-one cannot be drawn yet; everything else works. To draw them, run this:" >&2
        echo "  sudo sh -c '$command'" >&2
    else
        echo "System packages are missing. Run this, then try again:" >&2
        echo "  sudo sh -c '$command'" >&2
        exit 1
    fi
fi

# An environment without pip is one whose making was interrupted.
"$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$python" -m venv --clear "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    --constraint constraints.txt --editable '.[all,dev]'
# Its metadata asks for a Gymnasium of 2023, which its code does not need; what it does need came with the extra.
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    --constraint constraints.txt --no-deps 'bullet-safety-gym>=1.4,<2'

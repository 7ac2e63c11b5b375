#!/bin/sh
# Chromium for the tests that open the report and the scope, where it can be installed; they are skipped without it.
set -u
command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null && exit 0
command="apt-get update && apt-get install -y --no-install-recommends chromium"
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing a browser for the tests: chromium"
    DEBIAN_FRONTEND=noninteractive sh -c "$command" >/dev/null 2>&1 && exit 0
fi
echo "Note: tests in a browser will be skipped. To run them, install Chromium first, for example with:" >&2
echo "  sudo sh -c '$command'" >&2
exit 0

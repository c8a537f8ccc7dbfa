#!/bin/sh
# Makes sure the browser tests find a Chromium. On Debian or Ubuntu it is installed where that needs no password (root, or sudo
# without one); elsewhere nothing is changed, and the browser tests skip and say why.
for browser in chromium chromium-browser google-chrome google-chrome-stable; do
    if command -v "$browser" >/dev/null 2>&1; then exit 0; fi
done
if command -v apt-get >/dev/null 2>&1; then
    if [ "$(id -u)" -eq 0 ]; then as_root=""
    elif sudo -n true 2>/dev/null; then as_root="sudo"
    else as_root="none"; fi
    if [ "$as_root" != none ]; then
        echo "installing Chromium from the distribution's packages"
        export DEBIAN_FRONTEND=noninteractive
        $as_root apt-get update -qq && $as_root apt-get install -y -qq chromium >/dev/null && exit 0
    fi
fi
echo "Chromium was not found and could not be installed; the browser tests will be skipped." >&2

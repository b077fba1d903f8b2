#!/bin/bash
# Builds Debian's packages from the tarball of `make dist`, checks them with lintian, and
# installs and tries them in a new Debian made by debootstrap. Needs root.
#     run.sh SOURCE BUILD [PACKAGES]
# PACKAGES is a folder of packages that were built before.
. "$(dirname "$0")/../report.sh"
source=$1 place=$2/debian
version=$(sed -nE 's/^#define SHOAL_VERSION "([^"]+)".*/\1/p' "$source/include/shoal.h")
if [ $# = 3 ]; then place=$3; else rm -rf "$place"; fi
mkdir -p "$place"
mirror=$(sed -nE 's/^URIs: //p; s/^deb (\[.*\] )?(http[^ ]*) .*/\2/p' \
    /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list 2>/dev/null | head -n 1)
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
system=$work/system

unpack() {
    "$source/tools/dist" "$place" &&
        tar -xzf "$place/shoal-$version.tar.gz" -C "$place"
}
build() { cd "$place/shoal-$version" && dpkg-buildpackage -us -uc -b >../build.log 2>&1; }
check_packages() {
    lintian --allow-root --fail-on error "$place"/*.changes >"$place/lintian.log" 2>&1
    local code=$?
    cat "$place/lintian.log"
    return $code
}
new_system() { debootstrap --variant=minbase "$suite" "$system" "$mirror"; }
install() {
    cp "$place"/*.deb "$system/tmp/" &&
        cp /etc/apt/sources.list.d/debian.sources "$system/etc/apt/sources.list.d/" &&
        rm -f "$system/etc/apt/sources.list" &&
        inside apt-get update -qq &&
        inside sh -c 'apt-get install -y -qq --no-install-recommends /tmp/*.deb gcc \
            libc6-dev pkg-config'
}
inside() { DEBIAN_FRONTEND=noninteractive chroot "$system" "$@"; }
program() { inside shoal demo --max-length 256 && inside shoal info; }
python() {
    inside python3 -c '
import numpy as np, shoal
q = np.ones((1, 1, 50, 8), np.float32)
assert np.allclose(shoal.attention(q, q, q, "shoal"), 1, atol=1e-5)
from shoal._native import load_part
for part in ("models", "speech", "train"):
    load_part(part, "the test", {})
print(shoal.__version__)'
}
example() {
    sed -n '/^```c$/,/^```$/{/^```/d;p}' "$source/README.md" >"$system/tmp/example.c"
    inside sh -c 'cc /tmp/example.c $(pkg-config --cflags --libs shoal) -o /tmp/example &&
        /tmp/example'
}

if [ $# = 2 ]; then
    check "a tarball" unpack
    check "packages are built" build
fi
check "lintian has no errors" check_packages
check "a new $suite" new_system
check "packages install" install
check "the program runs" program
check "the Python package runs" python
check "README's example" example
finish

#!/bin/bash
# Runs a wheel for 64-bit Arm under qemu: the program's commands, and every part of the
# package with Debian's Python and numpy's wheel for that processor.
#     arm.sh SOURCE WHEEL
. "$(dirname "$0")/../report.sh"
source=$1 wheel=$(realpath "$2")
emulator=$(command -v qemu-aarch64 || command -v qemu-aarch64-static)
root=$work/root site=$work/site
mkdir "$root" "$site" "$work/data" "$work/debs"
packages="libc6 libgcc-s1 libstdc++6 zlib1g libexpat1 libssl3 libffi8 libcrypt1 libbz2-1.0
    liblzma5 python3.11-minimal libpython3.11-minimal libpython3.11-stdlib"

# Debian's packages for the processor, with lists of apt's own in $work.
unpack_system() {
    mkdir -p "$work/lists/partial"
    (
        cd "$work/debs" || exit 1
        options="-o APT::Architecture=arm64 -o APT::Architectures=arm64
            -o Dir::State::lists=$work/lists -o Dir::State::status=/dev/null
            -o Dir::Etc::sourceparts=$work/sources -o APT::Sandbox::User=root -qq"
        mkdir "$work/sources"
        cp /etc/apt/sources.list.d/debian.sources "$work/sources/" 2>/dev/null
        # shellcheck disable=SC2086 # lists, split on purpose
        apt-get $options update && apt-get $options download $packages
    ) || return 1
    for file in "$work"/debs/*.deb; do dpkg-deb -x "$file" "$root" || return 1; done
}
unpack_packages() {
    python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.11 \
        --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 \
        --platform manylinux2014_aarch64 --dest "$work/numpy" 'numpy>=2,<2.4' &&
        for file in "$work"/numpy/*.whl "$wheel"; do
            python3 -m zipfile -e "$file" "$site" || return 1
        done
    chmod +x "$site/shoal/bin/shoal"
}
emulate() { "$emulator" -L "$root" "$@"; }
make_data() {
    cat "$source/tests/cli/lib/tools.py" "$source/tests/cli/lib/whisper.py" >tool.py
    echo 'globals()[sys.argv[1]](*sys.argv[2:])' >>tool.py
    cp -r "$source/tests/models/text/bert" data/ &&
        python3 tool.py model data/small.bin && python3 tool.py wav data/talk.wav 2
    printf '#!/bin/sh\nexec %s -L %s %s "$@"\n' "$emulator" "$root" \
        "$site/shoal/bin/shoal" >shoal
    chmod +x shoal
}

cd "$work" || exit 1
[ -n "$emulator" ] || { skip "Arm" "no qemu here"; finish; }
check "Debian's packages" unpack_system
check "the wheels" unpack_packages
check "data is made" make_data
check "kernels of NEON" bash -c "./shoal info | grep -q neon"
SHOAL_PROGRAM=$work/shoal PYTHONPATH=$site emulate "$root/usr/bin/python3.11" \
    "$source/tests/wheel/parts.py" data || failed=1
bash "$source/tests/cli/every_command.sh" ./shoal | sed 's/^\(not \)\?ok /&shoal /'
[ "${PIPESTATUS[0]}" = 0 ] || failed=1
finish

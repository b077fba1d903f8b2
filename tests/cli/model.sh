#!/usr/bin/env bash
# Drives `shoal model` of the program given as $1. Downloads go to programs named curl and
# wget that this script makes: no test needs a network.
. "$(dirname "$0")/lib/helpers.sh"
sum=be07e048e1e599ad46341c8d2a135645097a538221678b7acdd1b1919c6e1b21
real=$data/models/ggml-tiny.bin

# ---- The command line ------------------------------------------------------------------
expect "help" 0 "--download" shoal model --help
expect "the list" 0 "whisper-tiny" shoal model
expect "the list as JSON" 0 "\"sha256\": \"$sum\"" shoal model --json
expect "where" 0 "whisper.cpp/resolve/main/ggml-tiny.bin" shoal model whisper-tiny
check "how to check it" says "shoal model whisper-tiny --check ggml-tiny.bin"
check "an address that nobody visited says so" says "was not tried"
expect "by the name of the file" 0 "$sum" shoal model ggml-tiny.bin --json
expect "misspelt" 2 "did you mean whisper-tiny?" shoal model whisper-tine
expect "unknown" 2 "shoal model lists them" shoal model xyz
expect "two" 2 "one model at a time" shoal model whisper-tiny whisper-tiny
expect "no name" 2 "no model was named" shoal model --download
expect "both" 2 "exclude each other" shoal model whisper-tiny --check x --download
expect "an output of nothing" 2 "need --download" shoal model whisper-tiny -o x

# ---- Files that are not the model ------------------------------------------------------
expect "no file" 3 "nothing.bin" shoal model whisper-tiny --check nothing.bin
expect "a folder" 3 "cannot read ." shoal model whisper-tiny --check .
head -c 1000 /dev/zero >short.bin
expect "another size" 3 "has 1000 bytes, and whisper-tiny has 77691713" \
    shoal model whisper-tiny --check short.bin
truncate -s 77691713 zeros.bin
expect "another sum, which is right" 3 \
    "has the SHA-256 $(sha256sum zeros.bin | cut -d' ' -f1), and" \
    shoal model whisper-tiny --check zeros.bin

# ---- Downloads -------------------------------------------------------------------------
# without COMMAND...: curl and wget are not installed.
mkdir none curl wget
without() { PATH=$work/none "$@"; }
offline() { PATH=$work/curl:$PATH "$@"; }
printf '#!/bin/sh\nexit 6\n' >curl/curl
chmod +x curl/curl
expect "offline" 3 "is there a network?" offline shoal model whisper-tiny --download
check "leaves nothing" absent ggml-tiny.bin.part
expect "neither curl nor wget" 3 "neither curl nor wget" without shoal model \
    whisper-tiny --download
expect "a pipe" 3 "has 8 bytes" shoal model whisper-tiny --check <(echo no page)
PATH_BEFORE=$PATH
PATH=$work/curl:$PATH
printf '#!/bin/sh\necho "$@" >asked\necho no page >"$4"\n' >curl/curl
expect "a wrong download" 3 "has 8 bytes" shoal model whisper-tiny --download \
    --from http://127.0.0.1/mirror
check "asks the mirror" grep -q " -- http://127.0.0.1/mirror$" asked
check "is removed" absent ggml-tiny.bin.part
check "and not put in place" absent ggml-tiny.bin
PATH=$PATH_BEFORE
expect "a folder that is not there" 4 "nowhere" shoal model whisper-tiny --download \
    -o nowhere/x.bin
if [ -e "$real" ]; then
    expect "the model itself" 0 "is whisper-tiny" shoal model whisper-tiny --check "$real"
    printf '#!/bin/sh\ncp "%s" "$4"\n' "$real" >curl/curl
    PATH=$work/curl:$PATH
    expect "a right download" 0 "x.bin is whisper-tiny, checked" shoal model \
        whisper-tiny --download -o x.bin
    expect "is kept" 0 "is there already" shoal model whisper-tiny --download -o x.bin
else
    skip "the model itself" "$real is not there"
fi
finish

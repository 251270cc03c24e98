#!/bin/sh
# Both fuzz targets, each for so many seconds, from the golden requests on: fuzz.sh SECONDS. Needs clang (CC
# names
# another one). A finding leaves its input in build/fuzz and fails.
set -eu

cd "$(dirname "$0")/.."
seconds=${1:?usage: fuzz.sh SECONDS}
out=build/fuzz
mkdir -p "$out/corpus"
for request in tests/vectors/*/request.safetensors; do
    case_name=$(basename "$(dirname "$request")")
    cp "$request" "$out/corpus/$case_name"
done
for target in safetensors request; do
    # shellcheck disable=SC2046 # flags
    "${CC:-clang}" -std=c11 -D_GNU_SOURCE -O1 -g3 -fno-omit-frame-pointer \
        -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -Wall -Wextra -Werror -I. \
        "tests/fuzz_$target.c" protocol/*.c $(pkg-config --libs jansson) -lm -o "$out/$target"
    status=0
    "$out/$target" -max_total_time="$seconds" -max_len=8192 -artifact_prefix="$out/" "$out/corpus" \
        >"$out/$target.log" 2>&1 || status=$?
    if [ "$status" -ne 0 ]; then
        tail -n 60 "$out/$target.log"
        exit 1
    fi
    echo "$target: $(tail -n 1 "$out/$target.log")"
done

#!/bin/sh
# Every fuzz target of one build for so many seconds, two at a time: fuzz.sh BUILD_DIR SECONDS. One line each,
# and at the end `N passed, N failed`. A target has passed when it ran its time without a finding and tried
# enough inputs to mean something. What was found is kept: the input beside the target's log, all else that
# reached new code in BUILD_DIR/corpus, where the next run begins.
set -u

cd "$(dirname "$0")/.." || exit 2
build=${1:?usage: fuzz.sh BUILD_DIR SECONDS}
seconds=${2:?usage: fuzz.sh BUILD_DIR SECONDS}
inputs_least=$((seconds * 50))
out=$build/tests/fuzz
passed=0
failed=0

# Checkpoints are written in memory where that is there.
in=${TMPDIR:-/tmp}
[ -d /dev/shm ] && [ -w /dev/shm ] && in=/dev/shm
scratch=$(mktemp -d "$in/kvmat-fuzz-XXXXXX") || exit 2
trap 'rm -rf "$scratch"' EXIT
export TMPDIR="$scratch"
export ASAN_OPTIONS="detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1"
export UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1"

# What the project's own vectors hold for a target, under names of their own.
golden() { # target
    case $1 in
    safetensors) file=request.safetensors ;;
    config) file=config.json ;;
    *) return ;;
    esac
    for source in tests/vectors/*/"$file"; do
        cp "$source" "$build/corpus/$1/golden_$(basename "$(dirname "$source")")"
    done
}

fuzz() { # target
    case $1 in
    # Its threads log each request, and free what another has allocated, which looks like a leak at times.
    http) set -- "$1" -close_fd_mask=2 -detect_leaks=0 ;;
    esac
    target=$1
    shift
    mkdir -p "$build/corpus/$target"
    golden "$target"
    "$out/$target" "$@" -max_total_time="$seconds" -max_len=8192 -timeout=30 -rss_limit_mb=4096 \
        -print_final_stats=1 -dict="tests/fuzz/$target.dict" -artifact_prefix="$out/$target-" \
        "$build/corpus/$target" "tests/fuzz/seeds/$target" >"$out/$target.log" 2>&1 </dev/null
    echo $? >"$out/$target.status"
}

# The last number behind a word in the fuzzer's log.
number_of() { # word, log
    sed -n "s/.*$1 *\([0-9][0-9]*\).*/\1/p" "$2" | tail -n 1
}

judge() { # target
    log=$out/$1.log
    status=$(cat "$out/$1.status" 2>/dev/null || echo none)
    inputs=$(number_of 'number_of_executed_units:' "$log")
    why=
    if [ "$status" != 0 ]; then
        why="exit status $status"
    elif [ "${inputs:-0}" -lt "$inputs_least" ]; then
        why="${inputs:-0} inputs in $seconds s, at least $inputs_least are wanted"
    fi
    if [ -z "$why" ]; then
        passed=$((passed + 1))
        printf 'ok    %-12s %8d inputs, cov %d, ft %d\n' "$1" "$inputs" "$(number_of 'cov:' "$log")" \
            "$(number_of 'ft:' "$log")"
    else
        failed=$((failed + 1))
        printf 'FAIL  %-12s %s\n' "$1" "$why"
        tail -n 60 "$log" | cut -c 1-300 | sed 's/^/      | /'
    fi
}

targets=
for source in tests/fuzz/*.c; do targets="$targets $(basename "$source" .c)"; done
# shellcheck disable=SC2086 # plain words
set -- $targets
while [ $# -gt 0 ]; do
    fuzz "$1" &
    first=$!
    if [ $# -gt 1 ]; then
        fuzz "$2"
        wait "$first"
        judge "$1"
        judge "$2"
        shift
    else
        wait "$first"
        judge "$1"
    fi
    shift
done
echo "fuzz: $passed passed, $failed failed"
[ "$failed" -eq 0 ]

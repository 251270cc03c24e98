#!/bin/sh
# Proves the CUDA backend on the GPU of this machine, gpu_check.sh BUILD_DIR: every tests/gpu_* program of
# that build but the benchmark, then compute-sanitizer over small runs of two of them. One line each, the
# output of what failed, and at the end, counted in checks, `N passed, N failed, N skipped`. Logs are in
# BUILD_DIR/tests. Without a GPU: `skip: no CUDA device`, exit status 0, and nothing counted;
# KVMAT_GPU_CHECK_REQUIRED=1 makes that a failure. KV_SEED repeats a run; SANITIZER_OPTIONS are handed to
# compute-sanitizer, SANITIZER_TOOLS chooses among its tools.
set -u

cd "$(dirname "$0")/.." || exit 2
build=${1:?usage: gpu_check.sh BUILD_DIR}
seconds_max=900
passed=0
failed=0
skipped=0

# Prints passed, failed and skipped of a log: libcheck's lines, and ours.
count() { # log
    awk '
        /^[0-9]+%: Checks: [0-9]+, Failures: [0-9]+, Errors: [0-9]+/ {
            bad = $5 + $7; passed += $3 - bad; failed += bad
        }
        /(^|: )[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ {
            sub(/^.*: /, "")
            passed += $1; failed += $3; skipped += $5
        }
        END { print passed + 0, failed + 0, skipped + 0 }' "$1"
}

fail() { # name, log, checks failed, why
    failed=$((failed + $3))
    printf 'FAIL  %-26s %s\n' "$1" "$4"
    tail -n 40 "$2" | sed 's/^/      | /'
}

# Runs one program to its end; a crash, a hang and a program that checks nothing have failed.
prove() { # name
    log=$build/tests/gpu_$1.log
    begin=$(date +%s)
    timeout --foreground -k 10 "$seconds_max" "$build/tests/gpu_$1" >"$log" 2>&1 </dev/null
    status=$?
    if [ "$status" -eq 77 ] && [ "$1" = device ]; then
        sed -n 's/^/      | /p' "$log" >&2
        echo 'skip: no CUDA device'
        exit 0
    fi
    # shellcheck disable=SC2046 # three numbers
    set -- "$1" $(count "$log")
    passed=$((passed + $2))
    skipped=$((skipped + $4))
    if [ "$3" -gt 0 ]; then
        fail "gpu_$1" "$log" "$3" "$3 of $(($2 + $3)) checks failed"
    elif [ "$status" -ne 0 ]; then
        fail "gpu_$1" "$log" 1 "exit status $status after $2 checks"
    elif [ "$2" -eq 0 ]; then
        fail "gpu_$1" "$log" 1 "checked nothing"
    else
        printf 'ok    %-26s %5d checks %4d s%s\n' "gpu_$1" "$2" $(($(date +%s) - begin)) \
            "$([ "$4" -eq 0 ] || echo ", $4 skipped")"
    fi
}

skip() { # name, why
    skipped=$((skipped + 1))
    printf 'skip  %-26s %s\n' "$1" "$2"
}

# One tool over the small case of one program: one check, passed when the program passes and the tool has said
# that it found nothing.
sanitize() { # tool, program
    log=$build/tests/gpu_$2.$1.log
    name="$1 gpu_$2"
    leaks=
    [ "$1" != memcheck ] || leaks='--leak-check full'
    # Loading lazily, it instruments only the kernels that run, not all of cuBLAS.
    # shellcheck disable=SC2086 # options are words
    CUDA_MODULE_LOADING=LAZY CK_RUN_CASE=small timeout --foreground -k 10 "$seconds_max" \
        "$sanitizer" --tool "$1" $leaks --error-exitcode 99 ${SANITIZER_OPTIONS:-} \
        "$build/tests/gpu_$2" >"$log" 2>&1 </dev/null
    status=$?
    if grep -qi 'device not supported' "$log"; then
        skip "$name" "compute-sanitizer does not support this device or machine"
    elif [ "$status" -eq 0 ] && grep -qE '^[0-9]+%: Checks: [1-9]' "$log" &&
        grep -qE 'ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards' "$log"; then
        passed=$((passed + 1))
        printf 'ok    %-26s %s\n' "$name" "$(grep -E 'SUMMARY' "$log" | tail -n 1 | sed 's/^=* *//')"
    else
        fail "$name" "$log" 1 "exit status $status"
    fi
}

[ -z "${KVMAT_GPU_CHECK_BACKEND:-}" ] ||
    echo "on the backend $KVMAT_GPU_CHECK_BACKEND: this tries the programs and proves nothing of a GPU"

# The life of the device comes first: it is quick, and says whether there is one.
for program in device kernels golden geometries items flights rows lost; do
    if [ ! -x "$build/tests/gpu_$program" ]; then
        failed=$((failed + 1))
        printf 'FAIL  %-26s %s is not there\n' "gpu_$program" "$build/tests/gpu_$program"
        continue
    fi
    prove "$program"
    [ "$program" != device ] || sed -n '/^device: /p' "$build/tests/gpu_device.log"
done

sanitizer=$(command -v compute-sanitizer) || sanitizer=${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer
for tool in ${SANITIZER_TOOLS:-memcheck racecheck initcheck synccheck}; do
    for program in kernels geometries flights; do
        # racecheck takes the barriers of cuBLAS's own kernels for races, and needs seconds for each launch.
        [ "$tool" = racecheck ] && [ "$program" != kernels ] && continue
        if [ -x "$sanitizer" ]; then
            sanitize "$tool" "$program"
        else
            skip "$tool gpu_$program" "there is no compute-sanitizer"
        fi
    done
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]

#!/bin/sh
# Runs every test of one build, run.sh BUILD_DIR: each tests/test_*.c, built as BUILD_DIR/tests/test_*, and
# the scripts below. One line each, the output of what failed, and at the end, counted in checks,
# `N passed, N failed, N skipped`. A test that crashes, hangs, is not built or checks nothing has failed;
# exit status 77 is a skip.
set -u

cd "$(dirname "$0")/.." || exit 2
build=${1:?usage: run.sh BUILD_DIR}
seconds_max=600
passed=0
failed=0
skipped=0

# The sanitizers stop at the first finding; in other builds nobody reads these.
export ASAN_OPTIONS="detect_leaks=1:halt_on_error=1:detect_stack_use_after_return=1:strict_string_checks=1"
export LSAN_OPTIONS="report_objects=1"
export UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1"
export TSAN_OPTIONS="halt_on_error=1:second_deadlock_stack=1:history_size=4"
# libcheck's own limit of 4 seconds a test is too near for a busy machine and for sanitizers.
export CK_DEFAULT_TIMEOUT=120

# Adds up every line of a kind in a log: prints passed, failed, skipped and how many such lines there were.
count() { # log
    awk '
        /^[0-9]+%: Checks: [0-9]+, Failures: [0-9]+, Errors: [0-9]+/ {
            checks = $3 + 0; bad = $5 + $7
            passed += checks - bad; failed += bad; lines++
        }
        /(^|: )[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?$/ {
            sub(/^.*: /, "")
            passed += $1; failed += $3; skipped += $5; lines++
        }
        END { print passed + 0, failed + 0, skipped + 0, lines + 0 }' "$1"
}

judge() { # name, log, exit status, begin in ms
    # shellcheck disable=SC2046 # four numbers
    set -- "$1" "$2" "$3" "$4" $(count "$2")
    bad=$6
    why=
    if [ "$3" -eq 77 ]; then
        skipped=$((skipped + 1))
        printf 'skip  %-36s %s\n' "$1" "$(tail -n 1 "$2")"
        return
    fi
    if [ "$3" -eq 124 ] || [ "$3" -eq 137 ]; then
        why="still running after $seconds_max s, or killed"
    elif [ "$3" -ne 0 ] && [ "$6" -eq 0 ]; then
        why="exit status $3 without a failed check"
    elif [ "$8" -eq 0 ] || [ $(($5 + $6 + $7)) -eq 0 ]; then
        why="checked nothing"
    elif [ "$3" -eq 0 ] && [ "$6" -ne 0 ]; then
        why="exit status 0 in spite of failed checks"
    fi
    [ -z "$why" ] || [ "$bad" -ne 0 ] || bad=1
    passed=$((passed + $5))
    failed=$((failed + bad))
    skipped=$((skipped + $7))
    ms=$(($(date +%s%3N) - $4))
    if [ "$bad" -eq 0 ]; then
        printf 'ok    %-36s %5d checks %4d.%d s\n' "$1" "$5" $((ms / 1000)) $((ms % 1000 / 100))
    else
        printf 'FAIL  %-36s %5d of %d checks failed%s\n' "$1" "$bad" $(($5 + bad)) "${why:+: $why}"
        tail -n 60 "$2" | sed 's/^/      | /'
    fi
}

run() { # name, command...
    name=$1
    shift
    begin=$(date +%s%3N)
    log=$build/tests/$name.log
    timeout -k 10 "$seconds_max" "$@" >"$log" 2>&1 </dev/null
    judge "$name" "$log" $? "$begin"
}

not_there() { # name, what is missing
    failed=$((failed + 1))
    printf 'FAIL  %-36s %s is not there\n' "$1" "$2"
}

mkdir -p "$build/tests"
for source in tests/test_*.c; do
    name=$(basename "$source" .c)
    if [ -x "$build/tests/$name" ]; then
        run "$name" "$build/tests/$name"
    else
        not_there "$name" "$build/tests/$name"
    fi
done
for script in smoke access commands check_layers_test; do
    if [ -x "tests/$script.sh" ]; then
        run "$script" "tests/$script.sh" "$build"
    else
        not_there "$script" "tests/$script.sh"
    fi
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]

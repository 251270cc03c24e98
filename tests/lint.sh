#!/bin/sh
# What machines can say about the sources: clang-tidy and cppcheck on C, shellcheck on the scripts.
# lint.sh [FILE.c...]: with files, clang-tidy alone, on these. Exit 1 when a tool finds something.
set -u

cd "$(dirname "$0")/.." || exit 2
export LC_ALL=C
jobs=$(nproc 2>/dev/null || echo 2)
rooms=
for room in protocol kernels server client tests; do
    [ -d "$room" ] && rooms="$rooms $room"
done
passed=0
failed=0

verdict() { # tool, what it looked at, exit status
    if [ "$3" -eq 0 ]; then
        passed=$((passed + 1))
        echo "lint: $1: $2: nothing found"
    else
        failed=$((failed + 1))
        echo "lint: $1: $2: see above"
    fi
}

# One process a file, so that both cores work; its count of suppressed warnings of system headers is no news.
tidy() { # FILE.c...
    # shellcheck disable=SC2016 # $0 and $1 are the inner shell's
    printf '%s\n' "$@" | xargs -P "$jobs" -n 1 sh -c '
        case $1 in
        protocol/error.c | server/findings.c) facts= ;;
        *) facts="-include tests/lint_facts.h" ;;
        esac
        said=$(clang-tidy --quiet "$1" -- $0 $facts 2>&1) && exit 0
        printf "%s\n" "$said" | grep -v " warnings\{0,1\} generated\.$"
        exit 1' "$flags $packages"
}

flags="-std=c11 -D_GNU_SOURCE -DKV_VERSION=\"\" -I."
flags="$flags -Wall -Wextra -Wshadow -Wconversion -Wno-unknown-attributes"
# Written with vector shuffles that clang does not know; gcc's warnings and the sanitizers look at it.
gcc_only='kernels/cpu_panel[.]c'
packages=$(pkg-config --cflags libmicrohttpd jansson libxxhash check 2>/dev/null || true)
if [ $# -gt 0 ]; then
    tidy "$@"
    verdict clang-tidy "$# files" $?
else
    # shellcheck disable=SC2086 # room names are plain words
    sources=$(find $rooms -path tests/vectors -prune -o -name '*.c' -print | grep -vxE "$gcc_only" | sort)
    # shellcheck disable=SC2086 # file names without spaces, as check_layers.sh proves
    set -- $sources
    tidy "$@"
    verdict clang-tidy "$# files" $?

    # It reads no headers of libraries, so it is told what this macro does.
    foreach='json_object_foreach(object,key,value)=for(key="",value=json_object_get(object,key);value;)'
    # Its parser gives up on the vector types of the CPU kernels and its preprocessor on some macros that both
    # compilers take; the compilers, clang-tidy and the sanitizers look at those.
    # shellcheck disable=SC2086
    cppcheck --quiet --error-exitcode=1 --std=c11 --language=c --enable=warning,performance,portability \
        --inline-suppr --suppress='internalAstError:kernels/cpu_*' --suppress='syntaxError:kernels/cpu_*' \
        --suppress=preprocessorErrorDirective \
        -I. -j "$jobs" -D"$foreach" $rooms
    verdict cppcheck "$# files" $?

    scripts=$(find tests deploy .ci -type f \( -name '*.sh' -o -name run \) 2>/dev/null | sort)
    # shellcheck disable=SC2086
    set -- $scripts
    shellcheck "$@"
    verdict shellcheck "$# scripts" $?
fi
echo "lint: $passed passed, $failed failed"
[ "$failed" -eq 0 ]

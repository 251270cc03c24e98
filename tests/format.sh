#!/bin/sh
# Brings the C sources into the house's shape (.clang-format), or with --check names what is not in it. The
# shape is that of clang-format 14; later versions differ in places, so with them --check says so and skips.
set -eu

cd "$(dirname "$0")/.."
version_wanted=14

tool=clang-format
command -v "$tool-$version_wanted" >/dev/null 2>&1 && tool=$tool-$version_wanted
version=$("$tool" --version | sed 's/.*version \([0-9]*\).*/\1/')
sources=$(find . -name .git -prune -o -path ./build -prune -o -path ./tests/vectors -prune -o \
    -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) -print | LC_ALL=C sort)

if [ "${1-}" != --check ]; then
    # shellcheck disable=SC2086 # file names without spaces
    "$tool" -i $sources
    exit 0
fi
if [ "$version" != "$version_wanted" ]; then
    echo "format: skip: the shape is clang-format $version_wanted's, this is $version"
    echo "format: 0 passed, 0 failed, 1 skipped"
    exit 0
fi

passed=0
failed=0
for source in $sources; do
    if "$tool" "$source" | cmp -s - "$source"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        line=$("$tool" "$source" | cmp - "$source" 2>&1 | sed -n 's/.*line \([0-9]*\).*/\1/p')
        echo "$source:${line:-1}: not in the house's shape; 'make format' puts it there"
    fi
done
echo "format: $passed passed, $failed failed"
[ "$failed" -eq 0 ]

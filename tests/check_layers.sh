#!/bin/sh
# Proves the house's arrows and its sizes: which room includes which, one door for each library, no cycles,
# the lengths of files, functions and lines, and the calls that are banned. check_layers.sh [ROOT]; exit 1
# when something is wrong, after naming file, line and reason of all that is. The rules: check_layers.awk.
set -eu

rules=$(cd "$(dirname "$0")" && pwd)/check_layers.awk
cd "${1:-$(dirname "$0")/..}"

rooms=
for room in protocol kernels server client tests; do
    [ -d "$room" ] && rooms="$rooms $room"
done
[ -n "$rooms" ] || {
    echo "check_layers: no rooms in $(pwd)" >&2
    exit 2
}

status=0
scripts=
for place in deploy .ci; do
    [ -d "$place" ] && scripts="$scripts $place"
done
# shellcheck disable=SC2086 # names of folders, all plain words
find $rooms $scripts -path tests/vectors -prune -o -type f \( -name '*.[ch]' -o -name '*.cu' \
    -o -name '*.cuh' -o -name '*.def' -o -name '*.sh' -o -name '*.awk' -o -path .ci/run \) -print |
    LC_ALL=C sort | LC_ALL=C xargs awk -v summary=1 -f "$rules" || status=1

# A path into somebody's home works on one machine only.
homes='(^|[^A-Za-z0-9_.~-])/(home|root|Users|work)/[A-Za-z0-9]'
found=$(grep -rnIE --exclude-dir=.git --exclude-dir=build --exclude-dir=vectors \
    --exclude=compile_commands.json "$homes" . |
    sed 's|^\./||; s|$|   <- a path that exists on one machine only|') || true
if [ -n "$found" ]; then
    echo "$found"
    status=1
fi
exit $status

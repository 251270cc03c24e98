#!/bin/sh
# Proves the Dockerfile's cpu target where no container engine is: takes its steps out of the Dockerfile,
# carries them out in fresh Debian roots (debootstrap and chroot), then runs the image's entrypoint, health
# check, user and stop signal in a network of its own, and has one request answered. Needs root, debootstrap,
# and the package mirror that this machine's own apt uses; says so and skips where it has not got them. Takes
# one to three minutes and 1.5 GB under TMPDIR.
set -eu

cd "$(dirname "$0")/.."
target=cpu
suite=bookworm # debian:12
say() { printf 'prove: %s\n' "$*"; }

# The Dockerfile as lines of STAGE<tab>INSTRUCTION<tab>REST, continued lines joined.
steps() {
    awk '
        /^[ \t]*#/ { next }
        { line = line $0 }
        /\\$/ { sub(/\\$/, "", line); next }
        line ~ /^[ \t]*$/ { line = ""; next }
        {
            word = line; sub(/[ \t].*$/, "", word)
            rest = line; sub(/^[A-Z]+[ \t]+/, "", rest)
            gsub(/[ \t]+/, " ", rest)
            if (word == "FROM") { stage = rest; sub(/^.* AS /, "", stage); sub(/ AS .*$/, "", rest) }
            print stage "\t" word "\t" rest
            line = ""
        }' Dockerfile
}

# The build context: what .dockerignore leaves.
context() {
    find . -path ./.git -prune -o -path ./build -prune -o -type f -print | sed 's|^\./||' |
        while read -r file; do is_ignored "$file" || printf '%s\n' "$file"; done
}

is_ignored() { # FILE
    while read -r pattern; do
        case $pattern in '' | '#'*) continue ;; esac
        # shellcheck disable=SC2254 # meant as patterns
        case $1 in
        $pattern/*) return 0 ;;
        # A * of .dockerignore does not match a slash, as it does here.
        $pattern) if [ "${pattern#*/}" != "$pattern" ] || [ "${1#*/}" = "$1" ]; then return 0; fi ;;
        esac
    done <.dockerignore
    return 1
}

in_root() { # ROOT WORKDIR ENVIRONMENT USER COMMAND...
    root=$1 directory=$2 environment=$3 user=$4
    shift 4
    # shellcheck disable=SC2086 # NAME=value words without spaces
    chroot --userspec="$user" "$root" /usr/bin/env -i -C "$directory" \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin $environment "$@"
}

copy() { # ROOT WORKDIR ARGUMENTS-OF-COPY
    to=${3##* }
    from=${3% *}
    case $to in /*) ;; *) to=$2/$to ;; esac
    case $from in
    --from=*)
        stage=${from#--from=}
        stage=${stage%% *}
        mkdir -p "$1$to"
        cp -a "$scratch/$stage${from#* }." "$1$to"
        ;;
    .)
        mkdir -p "$1$to"
        context | tar -c -T - | tar -x --no-same-owner -C "$1$to"
        ;;
    *)
        mkdir -p "$1$(dirname "$to")"
        cp "$from" "$1$to"
        ;;
    esac
}

build_stage() { # STAGE; leaves what the image would say of itself in $scratch/STAGE.image
    root=$scratch/$1
    directory=/
    environment=
    : >"$scratch/$1.image"
    tab=$(printf '\t')
    steps | grep -E "^$1$tab" | while IFS=$tab read -r _ word rest; do
        say "$1: $word $rest"
        case $word in
        FROM)
            [ "$rest" = debian:12-slim ] || { say "do not know the image $rest" && exit 1; }
            cp -a "$scratch/base" "$root"
            ;;
        ARG) environment="$environment ${rest%%=*}=proof" ;;
        WORKDIR) directory=$rest && mkdir -p "$root$directory" ;;
        COPY) copy "$root" "$directory" "$rest" ;;
        RUN)
            in_root "$root" "$directory" "$environment" 0:0 /bin/sh -c "$rest" \
                >"$scratch/$1.log" 2>&1 </dev/null ||
                { tail -n 30 "$scratch/$1.log" && say "failed: RUN $rest" && exit 1; }
            ;;
        ENV | USER | HEALTHCHECK | ENTRYPOINT | STOPSIGNAL | EXPOSE | VOLUME)
            printf '%s\t%s\n' "$word" "$rest" >>"$scratch/$1.image"
            ;;
        *) say "do not know how to carry out $word" && exit 1 ;;
        esac
    done
}

of_image() { sed -n "s/^$1	//p" "$scratch/$target.image"; }

# The exec form's words; they have no spaces.
exec_form() { sed 's/^[^[]*\[//; s/\].*$//; s/[",]/ /g'; }

check() { # what, command...
    what=$1
    shift
    if "$@" >"$scratch/said" 2>&1; then
        passed=$((passed + 1))
        say "ok: $what"
    else
        failed=$((failed + 1))
        say "FAIL: $what"
        tail -n 20 "$scratch/said"
    fi
}

run_image() {
    root=$scratch/$target
    user=$(of_image USER)
    health=$(of_image HEALTHCHECK | exec_form)
    entry=$(of_image ENTRYPOINT | exec_form)
    environment="$(of_image ENV) KVMAT_ALLOW_ANONYMOUS=1"
    golden=tests/vectors/dflash_default
    cp -r "$golden/." "$root$(of_image VOLUME)/"
    ip link set lo up
    mount -t proc proc "$root/proc"

    # shellcheck disable=SC2046,SC2086
    check "without keys it does not listen for everybody" sh -c '"$@"; test $? -eq 2' sh \
        chroot --userspec="$user" "$root" /usr/bin/env -i $(of_image ENV) $entry
    # shellcheck disable=SC2086
    check "the health check says no before there is a daemon" sh -c '! "$@"' sh \
        chroot --userspec="$user" "$root" $health
    # Not by in_root: a function in the background is a shell of its own, and $! would be that shell.
    # shellcheck disable=SC2086
    chroot --userspec="$user" "$root" /usr/bin/env -i $environment $entry >"$scratch/daemon.log" 2>&1 &
    daemon=$!
    trap 'kill -KILL "$daemon" 2>/dev/null || true' EXIT
    tries=0
    # shellcheck disable=SC2086
    until chroot --userspec="$user" "$root" $health >/dev/null 2>&1 || [ $tries -ge 600 ]; do
        tries=$((tries + 1))
        sleep 0.1
    done
    # shellcheck disable=SC2086
    check "the health check says yes" chroot --userspec="$user" "$root" $health
    check "the daemon runs as $user" grep -q "^Uid:	${user%%:*}	" "/proc/$daemon/status"
    check "the daemon is the entrypoint's own process" grep -qx kvmatd "/proc/$daemon/comm"
    check "a request through the image's kvmat" chroot "$root" /usr/local/bin/kvmat materialize \
        --input /model/request.safetensors --output /tmp/reply.safetensors
    check "its reply is right" chroot "$root" /usr/local/bin/kvmat compare --tolerance 3e-3 \
        /tmp/reply.safetensors /model/expected.safetensors
    check "the version is the one asked for" grep -q "kvmatd proof " "$scratch/daemon.log"
    kill -s "$(of_image STOPSIGNAL | sed 's/^SIG//')" "$daemon"
    status=0
    wait "$daemon" || status=$?
    check "exit status 0 after the stop signal" test "$status" -eq 0
    cat "$scratch/daemon.log"
}

if [ "${1-}" = --run-image ]; then
    scratch=$2
    passed=0
    failed=0
    run_image
    echo "prove: $passed passed, $failed failed"
    [ "$failed" -eq 0 ]
    exit
fi

skip() {
    say "skip: $*"
    echo "prove: 0 passed, 0 failed, 1 skipped"
    exit 0
}

[ "$(id -u)" -eq 0 ] || skip "not root, which chroot needs"
for tool in apt-get debootstrap chroot unshare ip; do
    command -v "$tool" >/dev/null || skip "no $tool here"
done
unshare --net --mount true 2>/dev/null || skip "no network namespaces here"
scratch=$(mktemp -d)
trap 'rm -rf --one-file-system "$scratch"' EXIT
trap 'exit 130' INT TERM

# shellcheck disable=SC2016 # the format is apt's, not the shell's
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | head -n 1)
begin=$(date +%s)
say "a fresh $suite root"
debootstrap --variant=minbase "$suite" "$scratch/base" "$mirror" >"$scratch/base.log" 2>&1 ||
    { tail -n 5 "$scratch/base.log" && skip "no fresh $suite root from this machine's mirror"; }
apt-config dump | grep '^Acquire::' >"$scratch/base/etc/apt/apt.conf.d/99-of-this-machine"
cp /etc/resolv.conf /etc/hosts "$scratch/base/etc/"
for stage in build "$target"; do build_stage "$stage"; done
say "built after $(($(date +%s) - begin)) s; running it"
unshare --net --mount sh "$0" --run-image "$scratch"

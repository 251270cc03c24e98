#!/bin/sh
# Makes sure that the packages of the named sets are installed: packages.sh SET..., see packages_of.
# Silent and quick when nothing is missing. On Debian and Ubuntu what is missing is installed, after saying
# so; on other systems what is needed is named, and the work goes on where it is found anyway.
set -eu

usage() {
    echo "usage: packages.sh SET..., sets: build demo check bench lint image fuzz" >&2
    exit 2
}

packages_of() {
    case $1 in
    build) echo gcc libc6-dev make pkg-config libmicrohttpd-dev libjansson-dev libxxhash-dev ;;
    demo) echo "$(packages_of build) curl" ;;
    check) echo "$(packages_of demo) check openssl" ;;
    bench) echo "$(packages_of check) libopenblas-dev" ;;
    image) echo debootstrap iproute2 ;;
    fuzz) echo "$(packages_of build) clang libclang-rt-dev" ;;
    lint) echo "$(packages_of build) clang-format clang-tidy cppcheck shellcheck" ;;
    *) usage ;;
    esac
}

# What each package is there for, as something that can be looked for without a package manager.
present_without_dpkg() {
    case $1 in
    gcc) command -v "${CC:-gcc}" ;;
    libc6-dev) printf '#include <stdio.h>\n' | "${CC:-gcc}" -E - ;;
    make | curl | openssl | clang-format | clang-tidy | cppcheck | shellcheck) command -v "$1" ;;
    pkg-config) command -v "${PKG_CONFIG:-pkg-config}" ;;
    debootstrap) command -v debootstrap ;;
    clang) command -v "${CLANG:-clang}" ;;
    libclang-rt-dev)
        echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' |
            "${CLANG:-clang}" -fsanitize=fuzzer -x c -o /dev/null -
        ;;
    iproute2) command -v ip ;;
    libmicrohttpd-dev) "${PKG_CONFIG:-pkg-config}" --exists libmicrohttpd ;;
    libjansson-dev) "${PKG_CONFIG:-pkg-config}" --exists jansson ;;
    libxxhash-dev) "${PKG_CONFIG:-pkg-config}" --exists libxxhash ;;
    libopenblas-dev) "${PKG_CONFIG:-pkg-config}" --exists openblas ;;
    check) "${PKG_CONFIG:-pkg-config}" --exists check ;;
    *) false ;;
    esac >/dev/null 2>&1
}

# The packages of "$@" that dpkg does not know as installed. Virtual packages (pkg-config is one on newer
# releases) count when something installed provides them.
missing_by_dpkg() {
    # shellcheck disable=SC2016 # the format is dpkg's, not the shell's
    dpkg-query -W -f '${db:Status-Abbrev}\t${Package}\t${Provides}\n' 2>/dev/null |
        awk -F '\t' -v wanted="$*" '
            $1 ~ /^.i/ {
                have[$2] = 1
                provided = $3
                gsub(/\([^)]*\)|,/, " ", provided)
                n = split(provided, name, " ")
                for (i = 1; i <= n; i++) have[name[i]] = 1
            }
            END {
                n = split(wanted, name, " ")
                for (i = 1; i <= n; i++) if (!(name[i] in have)) print name[i]
            }'
}

missing_otherwise() {
    for package in "$@"; do
        present_without_dpkg "$package" || echo "$package"
    done
}

install_packages() {
    if [ "$(id -u)" -eq 0 ]; then
        as_root=
    elif command -v sudo >/dev/null 2>&1; then
        as_root=sudo
    else
        echo "packages: not root and no sudo here. Run as root: apt-get install $*" >&2
        return 1
    fi
    echo "packages: missing: $*"
    echo "packages: installing them with: ${as_root:+$as_root }apt-get install --no-install-recommends"
    # sudo drops the environment, so the setting travels on its command line.
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get -q update >/dev/null || {
        echo "packages: 'apt-get update' failed; trying with the lists that are here" >&2
    }
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends "$@"
}

[ $# -gt 0 ] || usage
wanted=
for set in "$@"; do
    packages=$(packages_of "$set") || exit 2
    for package in $packages; do
        case " $wanted " in
        *" $package "*) ;;
        *) wanted="$wanted $package" ;;
        esac
    done
done

if command -v dpkg-query >/dev/null 2>&1 && command -v apt-get >/dev/null 2>&1; then
    # shellcheck disable=SC2086 # lists of plain names
    missing=$(missing_by_dpkg $wanted)
    [ -n "$missing" ] || exit 0
    # shellcheck disable=SC2086
    install_packages $missing && exit 0
    reason="could not be installed"
else
    reason="are not found, and this is no Debian or Ubuntu, so nothing was installed"
fi

# shellcheck disable=SC2086
missing=$(missing_otherwise $wanted)
[ -n "$missing" ] || exit 0
{
    echo "packages: what these Debian packages hold $reason:"
    for package in $missing; do echo "  $package"; done
    echo "packages: install them (or what your system calls them) so that pkg-config and PATH find them"
} >&2
exit 1

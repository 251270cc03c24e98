#!/bin/sh
# Who may call a real kvmatd, and how it listens: keys, TLS, open addresses, rights of sockets, several
# addresses. access.sh [BUILD_DIR]. Needs curl, and openssl for TLS. Ends with N passed, N failed, N skipped.
set -u

cd "$(dirname "$0")/.." || exit 2
build=${1:-build/release}
model=tests/vectors/one_token
scratch=$(mktemp -d)
keys=$scratch/keys
secret_a=Sesame-0123456789abcdef
secret_b=Simsim-fedcba9876543210
daemon=
passed=0
failed=0
skipped=0
umask 022
export LSAN_OPTIONS="${LSAN_OPTIONS-}"

# shellcheck disable=SC2317 # called by the trap
clean_up() {
    if [ -n "$daemon" ] && kill -KILL "$daemon" 2>/dev/null; then wait "$daemon" 2>/dev/null; fi
    rm -rf "$scratch"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

same() { # what, expected, got
    if [ "$2" = "$3" ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL: $1: expected '$2', got '$3'"
        tail -n 5 "$scratch/log" 2>/dev/null
    fi
}

count_of() { grep -cE -- "$1" "$2"; } # a regular expression, a file

write_keys() { # mode, lines...
    mode=$1
    shift
    rm -f "$keys"
    (umask 077 && printf '%s\n' "$@" >"$keys") && chmod "$mode" "$keys"
}

# Starts kvmatd and waits until everything it is told to listen on is ready to be asked.
start() {
    : >"$scratch/log" # or an earlier daemon's would be taken for this one's
    "$build/kvmatd" --model "$model" "$@" 2>"$scratch/log" &
    daemon=$!
    tries=0
    until grep -q ' ready after ' "$scratch/log" || [ $tries -ge 600 ]; do
        tries=$((tries + 1))
        kill -0 "$daemon" 2>/dev/null || break
        sleep 0.1
    done
    same "start of kvmatd $*" 1 "$(count_of ' ready after ' "$scratch/log")"
}

stop() {
    kill -TERM "$daemon"
    wait "$daemon"
    same "exit status after SIGTERM" 0 $?
    daemon=
    cat "$scratch/log" >>"$scratch/logs"
}

url_of() { # http, https; a host
    sed -n "s|.*listening on \($1://$2:[0-9]*\)\$|\1|p" "$scratch/log" | head -n 1
}

fetch() { # URL, curl's options...: the status
    url=$1
    shift
    curl --silent --max-time 30 --output "$scratch/body" --dump-header "$scratch/headers" \
        --write-out '%{http_code}' "$@" "$url"
}

fetch_as() { # key, URL, curl's options...
    key=$1
    shift
    fetch "$@" --header "Authorization: Bearer $key"
}

# kvmatd does not start: exit status 2, and what it says has each of these words.
refused() { # words, kvmatd's options...
    words=$1
    shift
    timeout 60 "$build/kvmatd" --model "$model" "$@" >/dev/null 2>"$scratch/log"
    same "exit status of kvmatd $*" 2 $?
    for word in $words; do same "$* says $word" 1 "$(count_of "$word" "$scratch/log")"; done
    cat "$scratch/log" >>"$scratch/logs"
}

await() { # what the log says in the end
    tries=0
    until grep -q "$1" "$scratch/log" || [ $tries -ge 100 ]; do
        tries=$((tries + 1))
        sleep 0.1
    done
    same "the log says $1" 1 "$(count_of "$1" "$scratch/log")"
}

check_key_files() {
    local_only='--listen 127.0.0.1:0'
    # shellcheck disable=SC2086 # two words
    {
        write_keys 644 "$secret_a"
        refused "option_invalid 0644 $keys" $local_only --api-key-file "$keys"
        write_keys 600 "# only a comment"
        refused "option_invalid no.key" $local_only --api-key-file "$keys"
        write_keys 600 "$secret_a" "$secret_b" "Sesame short"
        refused "option_invalid line.3" $local_only --api-key-file "$keys"
        refused "option_invalid cannot.be.opened" $local_only --api-key-file "$scratch/none"
    }
}

check_open_addresses() {
    refused "option_invalid 0.0.0.0:0" --listen 127.0.0.1:0 --admin-listen 0.0.0.0:0
    for address in 0.0.0.0:0 '[::]:0'; do
        refused "option_invalid --api-key-file --allow-anonymous" --listen 127.0.0.1:0 --listen "$address"
    done
    start --listen 0.0.0.0:0 --allow-anonymous
    url=http://127.0.0.1:$(url_of http 0.0.0.0 | sed 's/.*://')
    same "anybody may call" 200 "$(fetch "$url/v1/model")"
    stop
    write_keys 640 "$secret_a"
    start --listen 0.0.0.0:0 --api-key-file "$keys" --allow-anonymous
    url=http://127.0.0.1:$(url_of http 0.0.0.0 | sed 's/.*://')
    same "keys beat --allow-anonymous" 401 "$(fetch "$url/v1/model")"
    stop
}

check_keys() {
    write_keys 600 "# the first" "$secret_a" "" "$secret_b"
    start --listen 127.0.0.1:0 --admin-listen "unix:$scratch/admin" --api-key-file "$keys"
    for path in ready:200 metrics:401; do
        same "/${path%:*} on the admin listener" "${path#*:}" \
            "$(fetch "http://x/${path%:*}" --unix-socket "$scratch/admin")"
    done
    url=$(url_of http 127.0.0.1)
    for probe in health ready; do same "/$probe asks for no key" 200 "$(fetch "$url/$probe")"; done
    for path in v1/model v1/errors metrics v1/materialize none; do
        same "/$path without a key" 401 "$(fetch "$url/$path")"
        same "/$path challenges" 1 "$(count_of '^WWW-Authenticate: Bearer.$' "$scratch/headers")"
        same "/$path says why" 1 "$(count_of '"code": "unauthorized"' "$scratch/body")"
    done
    for secret in "$secret_a" "$secret_b"; do
        same "a key of the file" 200 "$(fetch_as "$secret" "$url/v1/materialize" \
            --data-binary "@$model/request.safetensors")"
    done
    same "a key and another" 401 "$(fetch_as "$secret_a" "$url/v1/model" \
        --header "Authorization: Bearer $secret_b")"
    same "a key that is nobody's" 401 "$(fetch_as "${secret_a}Guess" "$url/v1/model")"
    same "a header of another kind" 401 "$(fetch "$url/v1/model" --header "Authorization: Basic $secret_a")"
    same "a bad body" 400 "$(fetch_as "$secret_a" "$url/v1/materialize" --data-binary 'Sesame in a body')"
    same "its answer has nothing of it" 0 "$(count_of Sesame "$scratch/body")"
    KVMAT_API_KEY=$secret_b "$build/kvmat" model --url "$url" >"$scratch/body" 2>"$scratch/said"
    same "kvmat with a key" 0 $?
    KVMAT_API_KEY=${secret_b}Guess "$build/kvmat" model --url "$url" >"$scratch/body" 2>"$scratch/said"
    same "kvmat with a key that is nobody's" 1 $?
    same "kvmat says why" 1 "$(count_of 'code: unauthorized' "$scratch/said")"
    same "and not with which key" 0 "$(count_of Simsim "$scratch/said")"

    write_keys 600 "$secret_b"
    kill -HUP "$daemon"
    await 'API keys read again, 1 in force'
    same "a key that was taken out" 401 "$(fetch_as "$secret_a" "$url/v1/model")"
    same "a key that stayed" 200 "$(fetch_as "$secret_b" "$url/v1/model")"
    write_keys 600 "$secret_a" "Sesame"
    kill -HUP "$daemon"
    await 'API keys stay as they were'
    same "the file's fault is logged" 1 "$(count_of 'line 2 of .*option_invalid' "$scratch/log")"
    same "a key of a bad file" 401 "$(fetch_as "$secret_a" "$url/v1/model")"
    same "the keys before it" 200 "$(fetch_as "$secret_b" "$url/v1/model")"
    stop
}

make_certificate() { # name, the common name
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj "/CN=$2" \
        -addext subjectAltName=IP:127.0.0.1 -keyout "$scratch/$1.key" -out "$scratch/$1.pem" 2>/dev/null
}

handshake() { # a version of TLS: the one that was agreed on
    openssl s_client -connect "${url#https://}" "-$1" -cipher DEFAULT@SECLEVEL=0 </dev/null 2>/dev/null |
        sed -n 's/^New, \(.*\), Cipher.*/\1/p'
}

check_tls_files() {
    printf 'no certificate\n' >"$scratch/text.pem"
    printf -- '-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n' >"$scratch/broken.pem"
    cp "$scratch/one.key" "$scratch/open.key"
    chmod 644 "$scratch/open.key"
    refused "given.together" --tls-cert "$scratch/one.pem"
    refused "option_invalid none.pem" --tls-cert "$scratch/none.pem" --tls-key "$scratch/one.key"
    refused "option_invalid text.pem" --tls-cert "$scratch/text.pem" --tls-key "$scratch/one.key"
    refused "option_invalid text.pem" --tls-cert "$scratch/one.pem" --tls-key "$scratch/text.pem"
    refused "option_invalid open.key" --tls-cert "$scratch/one.pem" --tls-key "$scratch/open.key"
    echo 'leak:libgnutls.so' >"$scratch/leaks" # GnuTLS 3.7 keeps a certificate that it could not read
    LSAN_OPTIONS=${LSAN_OPTIONS-}:suppressions=$scratch/leaks
    refused "option_invalid broken.pem" --tls-cert "$scratch/broken.pem" --tls-key "$scratch/one.key"
    LSAN_OPTIONS=${LSAN_OPTIONS%:suppressions=*}
    refused "option_invalid one.pem.and.*two.key match" --tls-cert "$scratch/one.pem" \
        --tls-key "$scratch/two.key"
}

check_tls() {
    write_keys 600 "$secret_a"
    start --listen 127.0.0.1:0 --listen "unix:$scratch/plain" --api-key-file "$keys" \
        --tls-cert "$scratch/one.pem" --tls-key "$scratch/one.key"
    url=$(url_of https 127.0.0.1)
    same "a request" 200 "$(fetch_as "$secret_a" "$url/v1/materialize" --cacert "$scratch/one.pem" \
        --data-binary "@$model/request.safetensors")"
    "$build/kvmat" compare --tolerance 3e-3 "$scratch/body" "$model/expected.safetensors" >/dev/null
    same "its reply is right" 0 $?
    same "no key" 401 "$(fetch "$url/v1/model" --cacert "$scratch/one.pem")"
    same "another certificate is asked for" 000 "$(fetch "$url/health" --cacert "$scratch/two.pem")"
    same "no TLS" 000 "$(fetch "http://${url#https://}/health")"
    same "the unix socket is plain" 200 "$(fetch http://x/health --unix-socket "$scratch/plain")"
    same "TLS 1.3" TLSv1.3 "$(handshake tls1_3)"
    same "TLS 1.2" TLSv1.2 "$(handshake tls1_2)"
    same "TLS 1.1" "(NONE)" "$(handshake tls1_1)"
    same "TLS 1.0" "(NONE)" "$(handshake tls1)"

    # The answer to a body that does not come is written to the socket itself: never into a session of TLS.
    curl --silent --show-error --max-time 30 --cacert "$scratch/one.pem" --header 'Content-Length: 100000' \
        --data x "$url/v1/materialize" >"$scratch/body" 2>"$scratch/said"
    same "a late body: nothing but an end" "0 0" "$(wc -c <"$scratch/body" | tr -d ' ') $(
        count_of 'wrong version|packet length|bad record|timed out' "$scratch/said"
    )"
    same "a late body: its line in the log" 1 "$(count_of 'status=0 code=unauthorized' "$scratch/log")"
    kill -HUP "$daemon"
    await 'the certificate stays'
    same "handshakes that failed are not logged" 0 "$(count_of handshake "$scratch/log")"
    same "serving after all that" 200 "$(fetch_as "$secret_a" "$url/v1/model" --cacert "$scratch/one.pem")"
    stop
}

check_listeners() {
    start --listen 127.0.0.1:0 --listen "unix:$scratch/one" --listen "unix:$scratch/two" --listen localhost:0
    same "IPv4" 200 "$(fetch "$(url_of http 127.0.0.1)/health")"
    same "by name" 200 "$(fetch "$(url_of http localhost)/health")"
    for socket in one two; do
        same "unix socket $socket" 200 "$(fetch http://x/health --unix-socket "$scratch/$socket")"
        same "rights of $socket" 660 "$(stat -c %a "$scratch/$socket")"
    done
    stop
    start --listen 127.0.0.1:0 --listen "unix:$scratch/one" --unix-mode 0606
    same "rights asked for" 606 "$(stat -c %a "$scratch/one")"
    stop
    if grep -q ' lo$' /proc/net/if_inet6 2>/dev/null; then
        start --listen '[::1]:0' --listen 127.0.0.1:0
        same "IPv6" 200 "$(fetch "$(url_of http '\[::1\]')/health" --globoff)"
        same "and IPv4" 200 "$(fetch "$(url_of http 127.0.0.1)/health")"
        stop
    else
        skipped=$((skipped + 1))
        echo "skip: no IPv6 on loopback here"
    fi
}

check_key_files
check_open_addresses
check_keys
if command -v openssl >/dev/null && make_certificate one first && make_certificate two second; then
    check_tls_files
    check_tls
else
    skipped=$((skipped + 1))
    echo "skip: no openssl that makes certificates here"
fi
check_listeners
same "no log says anything of keys, headers and bodies" 0 "$(count_of 'Sesame|Simsim' "$scratch/logs")"
echo "access: $passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]

#!/bin/sh
# The service as somebody meets it for the first time: a real kvmatd, curl, and the kvmat command.
# smoke.sh [BUILD_DIR]. Needs curl; listens on loopback only; ends with `N passed, N failed`.
set -u

cd "$(dirname "$0")/.." || exit 2
build=${1:-build/release}
vectors=tests/vectors
golden=$vectors/dflash_default
scratch=$(mktemp -d)
daemon=
port=
url=
passed=0
failed=0

# shellcheck disable=SC2317 # called by the trap
clean_up() {
    if [ -n "$daemon" ] && kill -KILL "$daemon" 2>/dev/null; then wait "$daemon" 2>/dev/null; fi
    rm -rf "$scratch"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

pass() { passed=$((passed + 1)); }

fail() { # what was expected, what came
    failed=$((failed + 1))
    echo "FAIL: $1: $2"
}

same() { # what, expected, got
    if [ "$2" = "$3" ]; then pass; else fail "$1" "expected '$2', got '$3'"; fi
}

has() { # what, a regular expression, a file
    if grep -qE -- "$2" "$3"; then pass; else fail "$1" "no /$2/ in: $(head -c 300 "$3")"; fi
}

status_of() { # what, expected exit status, command...
    what=$1
    want=$2
    shift 2
    timeout 60 "$@" >"$scratch/out" 2>"$scratch/err"
    got=$?
    if [ "$got" -eq "$want" ]; then
        pass
    else
        fail "$what" "expected exit status $want, got $got: $(head -c 300 "$scratch/err" "$scratch/out")"
    fi
}

now_ms() { date +%s%3N; }

# Starts kvmatd with these arguments and waits until it is ready; sets daemon, port and url.
start() {
    "$build/kvmatd" "$@" >"$scratch/log" 2>&1 &
    daemon=$!
    tries=0
    port=
    while [ $tries -lt 600 ]; do
        tries=$((tries + 1))
        [ -n "$port" ] || port=$(sed -n 's|.*listening on http://127[.]0[.]0[.]1:\([0-9]*\).*|\1|p' \
            "$scratch/log")
        url=http://127.0.0.1:$port
        [ -n "$port" ] && [ "$(fetch /ready)" = 200 ] && return 0
        kill -0 "$daemon" 2>/dev/null || break
        sleep 0.1
    done
    fail "start of kvmatd $*" "not ready; its log: $(tail -n 5 "$scratch/log")"
    return 1
}

stop() { # what
    kill -TERM "$daemon"
    wait "$daemon"
    same "$1: exit status after SIGTERM" 0 $?
    daemon=
}

# The status of one call; the body is in $scratch/body, the headers in $scratch/headers.
fetch() { # path, curl's options...
    path=$1
    shift
    : >"$scratch/body"
    curl --silent --max-time 60 --dump-header "$scratch/headers" --output "$scratch/body" \
        --write-out '%{http_code}' "$@" "$url$path"
}

code_in_body() {
    tr -d ' \n\t' <"$scratch/body" | sed -n 's/.*"code":"\([a-z_0-9]*\)".*/\1/p'
}

refused() { # what, status, code, path, curl's options...
    what=$1
    want_status=$2
    want_code=$3
    shift 3
    same "$what: status and code" "$want_status $want_code" "$(fetch "$@") $(code_in_body)"
    has "$what: says application/json" '^[Cc]ontent-[Tt]ype: application/json' "$scratch/headers"
    has "$what: has the error as a sentence" '"error": ?"..*"' "$scratch/body"
}

check_command_line() {
    status_of "kvmatd --version" 0 "$build/kvmatd" --version
    status_of "kvmatd --help" 0 "$build/kvmatd" --help
    has "help names --model" '--model' "$scratch/out"
    status_of "kvmatd without --model" 2 "$build/kvmatd"
    status_of "kvmatd with an unknown option" 2 "$build/kvmatd" --model "$golden" --no-such-option
    status_of "kvmatd with a bad value" 2 "$build/kvmatd" --model "$golden" --max-tokens many
}

check_checkpoints() {
    status_of "--check of a good checkpoint" 0 "$build/kvmatd" --model "$golden" --check
    has "its report" '"ok": ?true' "$scratch/out"
    has "its geometry" '"head_dim": ?128' "$scratch/out"

    cp -r "$golden" "$scratch/odd_rotary"
    sed 's|"hidden_size"|"partial_rotary_factor": 0.2578125, "hidden_size"|' "$golden/config.json" \
        >"$scratch/odd_rotary/config.json"
    status_of "--check of a rotary_dim of 33" 1 "$build/kvmatd" --model "$scratch/odd_rotary" --check
    has "its report" '"ok": ?false' "$scratch/out"
    has "its code" '"code": ?"rotary_dim_invalid"' "$scratch/out"
    status_of "kvmatd does not serve it either" 1 "$build/kvmatd" --model "$scratch/odd_rotary" \
        --listen 127.0.0.1:0
    has "and says why" 'rotary_dim' "$scratch/err"

    cp -r "$golden" "$scratch/short"
    head -c 5000 "$golden/model.safetensors" >"$scratch/short/model.safetensors"
    status_of "--check of a file that is cut short" 1 "$build/kvmatd" --model "$scratch/short" --check
    has "its code" '"code": ?"safetensors_malformed"' "$scratch/out"

    status_of "--check of a folder that is not there" 1 "$build/kvmatd" --model "$scratch/absent" --check
    has "its code" '"code": ?"model_not_found"' "$scratch/out"
}

# Every metric is in README's table, under its whole name. Prometheus' own reader and its conventions, where
# it is installed; tests/exposition.c is always there.
check_metrics() {
    unknown=
    sed -n 's/^# TYPE \([a-z0-9_]*\) .*/\1/p' "$scratch/body" >"$scratch/families"
    while read -r family; do
        grep -qF -e "\`$family\`" -e "\`$family{" README.md || unknown="$unknown $family"
    done <"$scratch/families"
    same "metrics that README does not name" "" "$unknown"
    command -v promtool >/dev/null || return 0
    if promtool check metrics <"$scratch/body" >"$scratch/out" 2>&1 && [ ! -s "$scratch/out" ]; then
        pass
    else
        fail "promtool check metrics" "$(head -c 500 "$scratch/out")"
    fi
}

check_pages() {
    same "GET /health" 200 "$(fetch /health)"
    same "GET /ready" 200 "$(fetch /ready)"
    same "GET /v1/model" 200 "$(fetch /v1/model)"
    has "the model's fingerprint" '"fingerprint": ?"[0-9a-f]{32}"' "$scratch/body"
    has "the model's layers" '"layers": ?5' "$scratch/body"
    same "GET /v1/errors" 200 "$(fetch /v1/errors)"
    has "the catalogue lists queue_full" '"queue_full"' "$scratch/body"
    same "GET /v1/errors/size_mismatch" 200 "$(fetch /v1/errors/size_mismatch)"
    has "one row of the catalogue" '"code": ?"size_mismatch"' "$scratch/body"
    refused "a code that is not there" 404 not_found /v1/errors/no_such_code
    same "GET /metrics" 200 "$(fetch /metrics)"
    has "metrics have types" '^# TYPE kvmat' "$scratch/body"
    check_metrics
    same "HEAD /health" 200 "$(fetch /health --head)"
}

check_requests() {
    same "POST with curl's own content type" 200 "$(fetch /v1/materialize \
        --header 'X-Request-Id: smoke-1' --data-binary "@$golden/request.safetensors")"
    has "content type of the reply" '^[Cc]ontent-[Tt]ype: application/octet-stream' "$scratch/headers"
    has "length of the reply" '^[Cc]ontent-[Ll]ength: [0-9]' "$scratch/headers"
    has "the caller's id comes back" '^X-Request-Id: smoke-1' "$scratch/headers"
    has "timing" '^Server-Timing: ' "$scratch/headers"
    cp "$scratch/body" "$scratch/reply"
    status_of "the reply is right" 0 "$build/kvmat" compare --tolerance 3e-3 "$scratch/reply" \
        "$golden/expected.safetensors"
    status_of "and nearly another engine's" 0 "$build/kvmat" compare --tolerance 1e-3 "$scratch/reply" \
        "$golden/expected_sglang.safetensors"
    status_of "and compare can say no" 1 "$build/kvmat" compare --tolerance 1e-9 "$scratch/reply" \
        "$golden/expected.safetensors"

    fetch /v1/materialize --header 'X-Request-Id: smoke-1' \
        --data-binary "@$golden/request.safetensors" >/dev/null
    if cmp -s "$scratch/body" "$scratch/reply"; then
        pass
    else
        fail "the same request twice" "other bytes came"
    fi
    status_of "the same through kvmat" 0 "$build/kvmat" materialize --url "$url" \
        --input "$golden/request.safetensors" --output "$scratch/reply2"
    status_of "kvmat's reply is right" 0 "$build/kvmat" compare --tolerance 3e-3 "$scratch/reply2" \
        "$golden/expected.safetensors"
    status_of "kvmat ready" 0 "$build/kvmat" ready --url "$url"
    status_of "kvmat bench, always the same bits" 0 "$build/kvmat" bench --url "$url" --connections 2 \
        --rates 50,100 --seconds 0.3 --mix 1:3,16:1 --verify \
        --svg "$scratch/latency.svg" --json "$scratch/bench.json"
    has "its picture" '</svg>' "$scratch/latency.svg"
    has "its numbers" '"rate_per_s": 100,' "$scratch/bench.json"
    same "over the unix socket" 200 "$(fetch /v1/materialize --unix-socket "$scratch/socket" \
        --data-binary "@$golden/request.safetensors")"
}

check_refusals() {
    good=$golden/request.safetensors
    refused "an unknown route" 404 not_found /v1/nothing
    refused "a wrong method" 405 method_not_allowed /v1/materialize
    has "says what is allowed" '^Allow: .*POST' "$scratch/headers"
    refused "POST where GET is meant" 405 method_not_allowed /health --data x
    refused "a chunked body" 411 length_required /v1/materialize --header 'Transfer-Encoding: chunked' \
        --data-binary "@$good"
    refused "a compressed body" 415 media_type_unsupported /v1/materialize \
        --header 'Content-Encoding: gzip' --data-binary "@$good"
    refused "an expectation" 417 expectation_failed /v1/materialize --header 'Expect: the-moon' \
        --data-binary "@$good"
    head -c 2000 "$good" >"$scratch/cut"
    refused "a body that is cut short" 400 size_mismatch /v1/materialize --data-binary "@$scratch/cut"
    refused "a body of another kind" 400 body_malformed /v1/materialize --data 'hello, is this JSON?'
    refused "no body" 400 body_malformed /v1/materialize --data ''
    refused "another model's hidden size" 400 hidden_shape_mismatch /v1/materialize \
        --data-binary "@$vectors/linear/request.safetensors"
    has "with what was expected and got" '"expected": ?\[.*64\].*"got": ?\[.*32\]' "$scratch/body"
    refused "another model's input" 400 tensor_unexpected /v1/materialize \
        --data-binary "@$vectors/dflash_target_hidden/request.safetensors"
    head -c 2500000 /dev/zero >"$scratch/large"
    refused "a body over the limit, announced" 413 payload_too_large /v1/materialize \
        --data-binary "@$scratch/large"
    refused "the same without Expect" 413 payload_too_large /v1/materialize --header 'Expect:' \
        --data-binary "@$scratch/large"
    # Later versions of the HTTP library answer this one themselves, in their own words.
    same "a length and a transfer coding" 400 "$(fetch /v1/materialize --header 'Content-Length: 3' \
        --header 'Transfer-Encoding: gzip' --data-binary abc)"
    same "alive after all that" 200 "$(fetch /v1/materialize --data-binary "@$good")"
    same "GET /metrics again" 200 "$(fetch /metrics)"
    has "counted by status" '^kvmat_requests_total\{[^}]*"payload_too_large"\} [1-9]' "$scratch/body"
}

check_address_in_use() {
    begin=$(now_ms)
    status_of "a second daemon on the same address" 3 "$build/kvmatd" --model "$golden" \
        --listen "127.0.0.1:$port"
    took=$(($(now_ms) - begin))
    has "names the address" "127\.0\.0\.1:$port" "$scratch/err"
    if [ "$took" -lt 3000 ]; then pass; else fail "and says so at once" "after $took ms"; fi
}

for program in kvmatd kvmat; do
    [ -x "$build/$program" ] || {
        echo "smoke: $build/$program is not there: build it first" >&2
        echo "smoke: 0 passed, 1 failed"
        exit 1
    }
done

check_command_line
check_checkpoints
if start --model "$golden" --listen 127.0.0.1:0 --listen "unix:$scratch/socket" --max-body 2000000; then
    check_pages
    check_requests
    check_refusals
    check_address_in_use
    stop "kvmatd"
    same "nobody answers afterwards" 000 "$(fetch /health)"
    if [ -e "$scratch/socket" ]; then fail "the socket's file is gone" "it is still there"; else pass; fi
fi
echo "smoke: $passed passed, $failed failed"
[ "$failed" -eq 0 ]

#!/bin/sh
# What `make demo` shows: a draft checkpoint is made, checked and served, one request goes over HTTP, and the
# answer is compared with an independent float64 computation. demo.sh [BUILD_DIR]. Needs curl; listens on
# loopback only.
set -eu

cd "$(dirname "$0")/.."
build=${1:-build/release}
layers=5 hidden=2560 kv_heads=8 head_dim=128 theta=1000000 tokens=64
tolerance=1e-3

exec 3>&1
scratch=$(mktemp -d)
daemon=
# shellcheck disable=SC2317 # called by the trap
clean_up() {
    if [ -n "$daemon" ] && kill -KILL "$daemon" 2>/dev/null; then wait "$daemon" 2>/dev/null || true; fi
    rm -rf "$scratch"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

give_up() {
    echo
    echo "FAIL: $*"
    [ ! -s "$scratch/log" ] || sed 's/^/  kvmatd: /' "$scratch/log"
    exit 1
}

say() { # a command, with the scratch folder's name left out
    printf '  $ %s\n' "$*" | sed "s|$scratch/||g; s|$build/||g"
}

show() { # a command: says it, then does it
    say "$@" >&3
    "$@"
}

echo "1. A draft checkpoint with random weights, in the published form: the shape of the draft for a 4B model"
echo "   ($layers layers, hidden size $hidden, $kv_heads KV heads of $head_dim, theta $theta), but only the"
echo "   tensors that K and V need."
show "$build/kvmat" make-model --layers "$layers" --hidden "$hidden" --kv-heads "$kv_heads" \
    --head-dim "$head_dim" --theta "$theta" "$scratch/model" >"$scratch/said" || give_up "no model"
wc -c "$scratch"/model/* | sed "s|$scratch/||; /total/d; s/^ */  /; s/ \([^ ]*\)$/ bytes  \1/"

echo
echo "2. The daemon loads and validates it. It listens on a free port of this machine only."
set -- "$build/kvmatd" --model "$scratch/model" --listen 127.0.0.1:0
say "$@"
"$@" 2>"$scratch/log" &
daemon=$!
url=
tries=0
until [ -n "$url" ]; do
    tries=$((tries + 1))
    [ $tries -le 100 ] || give_up "kvmatd does not listen after 10 s"
    kill -0 "$daemon" 2>/dev/null || give_up "kvmatd ended"
    sleep 0.1
    url=$(sed -n 's|.*listening on \(http://127[.]0[.]0[.]1:[0-9]*\).*|\1|p' "$scratch/log")
done
show "$build/kvmat" ready --url "$url" --wait 30 >"$scratch/said" || give_up "not ready after 30 s"
sed 's/^/  /' "$scratch/log"

echo
echo "3. A request: $tokens tokens of hidden states and their positions, answered over HTTP."
show "$build/kvmat" make-request --model "$scratch/model" --tokens "$tokens" \
    "$scratch/request.safetensors" >"$scratch/said" || give_up "no request"
set -- curl --silent --show-error --fail-with-body --data-binary "@$scratch/request.safetensors" \
    --output "$scratch/reply.safetensors" "$url/v1/materialize"
say "$@"
"$@" --write-out '%{http_code} %{size_upload} %{size_download} %{time_total}\n' >"$scratch/curl" ||
    give_up "curl: $(cat "$scratch/curl" && head -c 500 "$scratch/reply.safetensors")"
tail -n 1 "$scratch/curl" | awk '{
    printf "  status %s, %d bytes up, %d bytes of K and V down, %.1f ms in all\n", $1, $2, $3, $4 * 1000
}'

echo
echo "4. The same by a program that shares no arithmetic with the daemon: float64, rounded to BF16 where the"
echo "   daemon rounds. Compared by ||got - expected|| / ||expected|| of each tensor, at most $tolerance."
show "$build/tests/reference" --model "$scratch/model" --input "$scratch/request.safetensors" \
    --output "$scratch/expected.safetensors" || give_up "no reference"
verdict=PASS
set -- "$build/kvmat" compare --tolerance "$tolerance" "$scratch/reply.safetensors" \
    "$scratch/expected.safetensors"
say "$@"
"$@" >"$scratch/comparison" 2>&1 || verdict=FAIL
sed 's/^/  /' "$scratch/comparison"

echo
echo "5. SIGTERM: the daemon finishes what is in flight and exits with 0."
kill -TERM "$daemon"
status=0
wait "$daemon" || status=$?
daemon=
echo "  exit status $status"
[ "$status" -eq 0 ] || give_up "exit status $status"
echo
[ $verdict = PASS ] || give_up "the answer is not within $tolerance"
echo "PASS: the answer over HTTP is the independent one within $tolerance."

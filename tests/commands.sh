#!/bin/sh
# The commands of kvmat that need no daemon, and the reference program against every vector.
# Usage: tests/commands.sh BUILD_DIR, from the root of the repository. Prints what failed, then "N passed, N
# failed".
# shellcheck disable=SC2086 # $small is a list of words
set -u
build=${1:?usage: tests/commands.sh BUILD_DIR}
kvmat=$build/kvmat
reference=$build/tests/reference
vectors=tests/vectors
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT INT TERM
unset KVMAT_URL KVMAT_API_KEY
passed=0
failed=0

verdict() { # NAME OK?
    if [ "$2" = yes ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'FAILED %s\n' "$1"
        sed 's/^/    /' "$work/out" "$work/err"
    fi
}

# exits CODE WORDS ARGS...: the command ends with CODE and its output has WORDS (a pattern of grep).
exits() {
    code=$1 words=$2
    shift 2
    "$kvmat" "$@" >"$work/out" 2>"$work/err"
    got=$?
    if [ $got -eq "$code" ] && cat "$work/out" "$work/err" | grep -q -e "$words"; then
        verdict "$*" yes
    else
        echo "exit $got, expected $code with: $words" >>"$work/err"
        verdict "$*" no
    fi
}

check() { # NAME COMMAND...: the command succeeds
    name=$1
    shift
    if "$@" >"$work/out" 2>"$work/err"; then verdict "$name" yes; else verdict "$name" no; fi
}

small='--layers 2 --hidden 64 --kv-heads 2 --head-dim 16'

# usage
exits 2 'Usage: kvmat COMMAND'
exits 0 'Usage: kvmat COMMAND' --help
exits 0 '^kvmat ' --version
exits 2 'there is no command frobnicate' frobnicate
for command in health ready model materialize bench compare explain make-model make-request; do
    exits 0 "Usage: kvmat $command" $command --help
    exits 2 'Unknown option --frobnicate' $command --frobnicate
done
exits 2 '--wait needs a value' ready --wait
exits 2 '--wait: expected a number from 0 to 86400, got 5s' ready --wait 5s
exits 2 '--tokens: .*got 12x' make-request --hidden 8 --tokens 12x "$work/x"
exits 2 '--tokens: .*got -1' make-request --hidden 8 --tokens -1 "$work/x"
exits 2 '--tokens: .*got 99999999999999999999' make-request --hidden 8 --tokens 99999999999999999999 "$work/x"
exits 2 '--dtype: expected bf16|f16|f32, got int8' make-request --hidden 8 --tokens 1 --dtype int8 "$work/x"
exits 2 'Unexpected argument b' health b
exits 2 '--bias takes no value' make-model $small --bias=yes "$work/x"
exits 2 'Missing argument: expected A B' compare only-one
exits 2 '--input FILE is needed' materialize --output x
exits 2 'http://HOST:PORT' health --url https://localhost:1
exits 3 'service_unreachable' health --url "unix:$work/none.sock"
exits 3 'Cannot connect' ready --wait 0.5 --url http://127.0.0.1:1
exits 3 'Cannot connect' bench --url "unix:$work/none.sock"
exits 2 'Cannot read' materialize --url "unix:$work/none.sock" --input "$work/none" --output "$work/x"

# explain
exits 0 'What to do' explain position_out_of_range
exits 1 'did you mean queue_full' explain quue_full
exits 0 'rope_type_unsupported' explain
exits 0 'yarn or llama3' explain rope_type_unsupported
exits 0 'weights_quantized' explain AWQ
exits 1 'no code is or speaks of' explain nothing_of_the_kind
exits 1 'no code is or speaks of' explain ''
"$kvmat" explain --markdown >"$work/one.md"
"$kvmat" explain --markdown >"$work/two.md"
found=$("$kvmat" explain xid | cut -d' ' -f1)
check 'a search names what speaks of the word' test "$found" = device_lost
check 'no page is wider than a terminal' sh -c "
    $kvmat explain | cut -d' ' -f1 | while read -r code; do $kvmat explain \$code; done |
        awk 'length > 80 { print; wide = 1 } END { exit wide }'"
check 'the documentation is deterministic' cmp "$work/one.md" "$work/two.md"
codes=$(cat protocol/errors_*.def | grep -c '^KV_ROW(')
check 'every code is documented' test "$codes" -eq "$(grep -c '^## ' "$work/one.md")"
check 'no link of the documentation is dead' sh -c "
    grep -o '](#[a-z0-9_]*)' $work/one.md | sort -u | sed 's/](#//; s/)//' | while read -r code; do
        grep -q \"^## \$code\$\" $work/one.md || { echo dead: \$code; exit 1; }
    done"

# make-model
exits 0 'tensors 6' make-model $small --seed 7 "$work/a"
exits 0 'tensors 6' make-model $small --seed 7 "$work/b"
exits 0 'tensors 6' make-model $small --seed 8 "$work/c"
check 'one seed gives the same weights' cmp "$work/a/model.safetensors" "$work/b/model.safetensors"
check 'one seed gives the same config' cmp "$work/a/config.json" "$work/b/config.json"
exits 1 'k_proj.weight.*MISMATCH' compare "$work/a/model.safetensors" "$work/c/model.safetensors"
exits 2 'has files in it' make-model $small "$work/a"
exits 0 'folder' make-model $small --shards 3 --force "$work/b"
check 'force leaves no older form' test ! -e "$work/b/model.safetensors"
check 'shards have an index' test -s "$work/b/model.safetensors.index.json"
exits 0 'tensors 12' make-model $small --taps 3 --bias --rotary-dim 6 --yarn 4 --interleaved --value-scale \
    0.5 "$work/d"
check 'the config says what was asked' grep -q '"factor": 4, "original_max_position_embeddings": 10240' \
    "$work/d/config.json"
exits 2 'even number' make-model $small --rotary-dim 7 "$work/x"
exits 2 'larger than --head-dim' make-model $small --rotary-dim 32 "$work/x"
exits 2 'exclude each other' make-model $small --rotary-dim 8 --partial-rotary-factor 0.5 "$work/x"
exits 2 '--hidden N is needed' make-model --layers 2 --kv-heads 2 --head-dim 16 "$work/x"
exits 2 'larger than any file' make-model --layers 1024 --hidden 16777216 --kv-heads 65536 --head-dim \
    65536 "$work/x"
exits 2 'larger than the number of tensors' make-model --layers 1 --hidden 8 --kv-heads 1 --head-dim 8 \
    --shards 9 "$work/x"
exits 2 'Cannot make the folder' make-model $small "$work/no/such/place"
exits 2 'No space left\|File too large\|larger than any file' make-model --layers 1000 --hidden 1048576 \
    --kv-heads 1024 \
    --head-dim 1024 "$work/x"
check 'a refusal leaves nothing' test ! -e "$work/x"

# make-request
exits 0 'tokens 5' make-request --hidden 64 --tokens 5 --seed 3 "$work/r1"
exits 0 'width 64' make-request --model "$work/a" --tokens 5 --seed 3 "$work/r2"
check 'one seed gives the same request' cmp "$work/r1" "$work/r2"
exits 0 'width 192' make-request --model "$work/d" --target --tokens 5 "$work/r3"
exits 0 'bytes' make-request --hidden 64 --tokens 0 --dtype f32 --positions-dtype i32 "$work/r4"
exits 0 'bytes' make-request --hidden 64 --tokens 5 --random-positions 9 "$work/r5"
exits 2 'only one' make-request --tokens 5 "$work/x"
exits 2 'needs --taps' make-request --model "$work/a" --target --tokens 5 "$work/x"
exits 2 'do not fit I32' make-request --hidden 8 --tokens 2 --positions-dtype i32 --position-start \
    2147483647 "$work/x"
exits 2 'exclude each other' make-request --hidden 8 --tokens 2 --position-start 1 --random-positions 5 \
    "$work/x"
exits 2 'Cannot create' make-request --hidden 8 --tokens 2 "$work/no/x"
exits 2 'Is a directory' make-request --hidden 8 --tokens 2 "$work"
check 'nothing temporary is left' sh -c "test -z \"\$(find $work -name '*.tmp')\""

# compare
exits 0 'rel_l2 0.000e+00 .*ok' compare "$work/r1" "$work/r2" --exact
exits 0 'positions .*differing 0 of 5 ok' compare "$work/r1" "$work/r2"
exits 1 'positions rel_l2 inf' compare "$work/r1" "$work/r5" --tolerance positions=0
exits 1 'only in A MISMATCH' compare "$work/r3" "$work/r1"
exits 1 'against' compare "$work/r1" "$work/r4"
exits 2 'neither file has a tensor q' compare "$work/r1" "$work/r2" --tolerance q=1
exits 2 'expected X or NAME=X' compare "$work/r1" "$work/r2" --tolerance k=
exits 2 'file_unusable' compare "$work/r1" "$work/none"
exits 2 'file_unusable' compare "$work/r1" tests/commands.sh
one=$vectors/dflash_default/expected.safetensors
sglang=$vectors/dflash_default/expected_sglang.safetensors
exits 0 'k rel_l2 2.31.*ok' compare "$sglang" "$one"
exits 1 'k .*MISMATCH past 2.000e-03' compare "$sglang" "$one" --tolerance k=2e-3
exits 0 'v .*ok' compare "$sglang" "$one" --tolerance k=3e-3,v=2.5e-3
exits 1 'MISMATCH' compare "$sglang" "$one" --exact

# the reference program, within the bounds of each case, and without rounding far inside them
for case in "$vectors"/*/case.json; do
    case=${case%/case.json}
    name=$(basename "$case")
    k=3e-3 v=2.5e-3
    case $name in
        *target_hidden* | *f32_weights*) k=6e-3 v=6e-3 ;;
        *fp16*) k=6e-4 v=6e-4 ;;
    esac
    check "reference $name" "$reference" --model "$case" --input "$case/request.safetensors" --output \
    "$work/kv"
    exits 0 'ok' compare "$work/kv" "$case/expected.safetensors" --tolerance k=$k,v=$v
    check "reference --unrounded $name" "$reference" --model "$case" --input "$case/request.safetensors" \
        --output "$work/kv0" --unrounded
    exits 0 'ok' compare "$work/kv0" "$case/expected.safetensors" --tolerance k=3e-4,v=1e-6
    if [ -e "$case/expected_sglang.safetensors" ]; then
        exits 0 'ok' compare "$work/kv" "$case/expected_sglang.safetensors" --tolerance 1e-3
    fi
done

printf '%d passed, %d failed\n' $passed $failed
[ $failed -eq 0 ]

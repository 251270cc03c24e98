#!/bin/sh
# Every benchmark of one build, each beside its opponent in one run: bench.sh BUILD_DIR. Medians; the machine
# should
# have nothing else to do. With CSV=FILE in the environment the rows are appended there, too.
set -eu

cd "$(dirname "$0")/.."
build=${1:?usage: bench.sh BUILD_DIR}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
KVMAT_COMMIT=$(git describe --always --dirty 2>/dev/null || echo unknown)
export KVMAT_COMMIT
set --
[ -z "${CSV:-}" ] || set -- --csv "$CSV"

# Where these are set they pin OpenBLAS to an older processor's kernels, which would be no fair opponent.
env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE "$build/tests/bench_cpu" "$@"
echo
"$build/tests/bench_http" "$@"
echo
"$build/tests/bench_pressure" "$@"
echo
"$build/kvmat" make-model --layers 5 --hidden 4096 --kv-heads 8 --head-dim 128 "$scratch/model" >/dev/null
sync "$scratch/model/model.safetensors" # writing it back must not run beside what is measured
"$build/tests/bench_load" "$scratch/model" "$@"

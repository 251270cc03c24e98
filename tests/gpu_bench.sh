#!/bin/sh
# What `make bench-gpu` runs: gpu_bench.sh BUILD_DIR. Device time beside cuBLASLt and the floor, the same
# through PyTorch, and the served path; each part is left out, and says so, where what it needs is not there.
# CSV=FILE appends the rows, SGLANG=PATH names an installed SGLang, PARTS chooses from: device torch serve.
# The machine should have nothing else to do.
set -u

cd "$(dirname "$0")/.." || exit 2
build=${1:?usage: gpu_bench.sh BUILD_DIR}
parts=${PARTS:-device torch serve}
python=${PYTHON:-python3}
failed=0

ask() { # a column of nvidia-smi, for the first GPU
    nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null | head -n 1 | tr -d ','
}

has() { # Python modules
    "$python" -c "import $1" >/dev/null 2>&1
}

wants() { # part
    case " $parts " in *" $1 "*) ;; *) return 1 ;; esac
}

check() { # part, exit status
    [ "$2" -eq 0 ] && return
    failed=1
    echo "FAIL: $1: exit status $2"
}

if [ ! -e /dev/nvidia0 ] && [ -z "$(ask name)" ]; then
    echo "skip: no CUDA device"
    exit 0
fi
: "${KVMAT_COMMIT:=$(git describe --always --dirty 2>/dev/null || echo unknown)}"
: "${KVMAT_DRIVER:=$(ask driver_version)}" "${KVMAT_GPU:=$(ask name)}"
: "${KVMAT_DRIVER:=unknown}" "${KVMAT_GPU:=unknown}"
export KVMAT_COMMIT KVMAT_DRIVER KVMAT_GPU PYTHONDONTWRITEBYTECODE=1
echo "$KVMAT_GPU, driver $KVMAT_DRIVER, kvmat $KVMAT_COMMIT"
set --
[ -z "${CSV:-}" ] || set -- --csv "$CSV"
if wants device; then
    echo
    "$build/tests/gpu_bench" "$@"
    check device $?
fi
[ -z "${SGLANG:-}" ] || set -- "$@" --sglang "$SGLANG"
if wants torch && ! has torch; then
    echo "skip: torch: $python has no torch"
elif wants torch; then
    echo
    "$python" tests/gpu_bench_torch.py "$@"
    check torch $?
fi
if wants serve && ! has 'torch, aiohttp, uvloop, safetensors'; then
    echo "skip: serve: $python has not all of torch, aiohttp, uvloop and safetensors"
elif wants serve; then
    echo
    "$python" tests/gpu_bench_serve.py --build "$build" "$@"
    check serve $?
fi
exit $failed

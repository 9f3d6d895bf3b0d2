#!/usr/bin/env bash
# Everything about GPUs, on a machine that has one: the tests over its own driver, `cuda_pair`, `cuda_bench`, and the queues of
# `torch.multiprocessing` beside slipring.
#
#   tests/device.sh            does all of the following; needs a driver and a Rust toolchain (offline, if the crates are vendored)
#   tests/device.sh bundle     builds alone: target/device then runs on a machine that has a driver and nothing else
#   tests/device.sh run        runs what is in target/device
#   tests/device.sh torch      measures the queues; needs the Rust toolchain, and a Python with torch or PyPI
set -euo pipefail
cd "$(dirname "$0")/.."
bundle=$PWD/target/device

build() {
    local offline=()
    if [ -d vendor ]; then offline=(--offline); fi
    rm -rf "$bundle"
    mkdir -p "$bundle"
    cargo build "${offline[@]}" --release --features cuda --example cuda_pair --example cuda_bench
    local target=${CARGO_TARGET_DIR:-$PWD/target}
    cp "$target"/release/examples/{cuda_pair,cuda_bench} "$bundle"
    cargo test "${offline[@]}" --no-run --features cuda --test cuda \
        --message-format=json |
        python3 -c '
import json, shutil, sys
for line in sys.stdin:
    made = json.loads(line)
    if made.get("executable") and made["profile"]["test"]:
        shutil.copy(made["executable"], sys.argv[1] + "/test-" + made["target"]["name"])
' "$bundle"
    strip "$bundle"/* || true
}

# Makes a Python with torch and this package, of what is installed here and else from PyPI, and measures with it.
beside_torch() {
    local venv=$PWD/target/device-python
    [ -e "$venv/bin/pip" ] || python3 -m venv --system-site-packages "$venv"
    local pip=("$venv/bin/pip" install --quiet --disable-pip-version-check --retries 1)
    if ! "${pip[@]}" maturin==1.16.0 numpy torch; then
        echo "skipped: the queues of torch.multiprocessing need torch, or PyPI"
        return
    fi
    PATH=$venv/bin:$PATH "${pip[@]}" --no-build-isolation --no-deps --force-reinstall crates/slipring-python
    "$venv/bin/python" -m slipring.torch.gpu_bench
    echo "the same, with memory that travels as a descriptor:"
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "$venv/bin/python" -m slipring.torch.gpu_bench
}

# Commands before each of two processes.
apart=()

# A tensor from one process to another: a name, then what `cuda_pair send` takes.
pair() {
    local name=$1
    shift
    "${apart[@]}" "$bundle/cuda_pair" recv "$name" &
    local receiver=$!
    sleep 1
    "${apart[@]}" "$bundle/cuda_pair" send "$name" "$@"
    wait "$receiver"
}

run() {
    command -v nvidia-smi >/dev/null && nvidia-smi -L
    # The modules `fake` and `fake_misuse` are about the driver without a GPU. What measures runs alone.
    local speed=pinned::a_gpu_reads_a_pinned_segment_as_fast_as_memory_of_the_driver
    SLIPRING_GPU=1 "$bundle/test-cuda" --nocapture --skip fake --skip "$speed" --skip peers::
    # One GPU reads memory of another. A test says so if the topology has no way between the first two.
    if command -v nvidia-smi >/dev/null && [ "$(nvidia-smi -L | wc -l)" -lt 2 ]; then
        echo "skipped: tensors between GPUs need two, and there is one"
    else
        SLIPRING_GPU=1 "$bundle/test-cuda" --nocapture peers::
    fi
    SLIPRING_GPU=1 "$bundle/test-cuda" --nocapture --exact "$speed"
    local name=device-$$
    pair "$name-handle" 1024 3
    pair "$name-fd" 1024 3 fd
    # As between two containers.
    apart=(unshare --pid --ipc --fork)
    if "${apart[@]}" true; then
        pair "$name-apart" 1024 3 fd
    else
        echo "skipped: namespaces of their own are not permitted here"
    fi
    "$bundle/cuda_bench"
}

case ${1:-all} in
bundle) build ;;
run) run ;;
torch) beside_torch ;;
all)
    build
    run
    beside_torch
    ;;
*)
    sed -n '2,8p' "$0"
    exit 2
    ;;
esac

#!/bin/bash
# Every figure of the GPU path, one after the other: benchmarks/on_gpu.sh SMOLLM2_DIRECTORY TOKENIZER_DIRECTORY OUT [ENGINE_ARGUMENT=VALUE ...]
# On a machine with two GPUs the step at reference size is measured on both as well.
set -uo pipefail
cd "$(dirname "$(dirname "$(readlink -f "$0")")")"
model=$1 tokenizer=$2 out=$3
shift 3
arguments=()
for argument in "$@"; do arguments+=(--argument "$argument"); done
large=${LARGE_MODEL:-${TMPDIR:-/tmp}/qwen3-8b-shape}
mkdir -p "$out"

run() { # NAME SECONDS COMMAND...
    local name=$1 limit=$2 started=$SECONDS
    shift 2
    timeout "$limit" "$@" >"$out/$name.log" 2>&1
    echo "$name: exit status $?, $((SECONDS - started)) s"
}

small=("${arguments[@]}" --argument disable_cuda_graph=true --argument enable_fp32_lm_head=true)
run leaks 1200 python benchmarks/leaks.py --config benchmarks/smollm2.toml --set lr=2e-5 "${small[@]}" --out "$out/leaks.json"
run trainer_parity 120 python benchmarks/trainer_parity.py --out "$out/trainer_parity.json"
for task in erdos_min_overlap circle_packing_32; do
    run "learning-$task" 900 python benchmarks/learning.py --config benchmarks/smollm2.toml --model "$model" --task "$task" \
        --steps 15 --seeds 0 --jobs 2 --keep "$out/$task" "${small[@]}" --out "$out/learning-$task.json"
done
trained=$(find "$out/erdos_min_overlap" -maxdepth 1 -name 'seed-0-lr-*' ! -name '*-lr-0' | head -1)
run proof_faults 300 python benchmarks/proof_faults.py --config "$trained/tttdd.toml" --state-dir "$trained/state" \
    --run erdos_min_overlap-1 --out "$out/proof_faults.json"
run leftovers 900 python benchmarks/leftovers.py --config benchmarks/smollm2.toml --model "$model" "${small[@]}" \
    --out "$out/leftovers.json"
step=(python benchmarks/large_model.py --model "$large" --tokenizer "$tokenizer" "${arguments[@]}")
run large_model-1 900 "${step[@]}" --engines 0 --trainers 0 --out "$out/large_model-1.json"
if [ "$(nvidia-smi -L | wc -l)" -gt 1 ]; then
    run large_model-2 900 "${step[@]}" --engines 0 1 --trainers 0 1 --out "$out/large_model-2.json"
    run large_model-2-tp 900 "${step[@]}" --engines 0 1 --trainers 0 1 --tensor-parallel 2 --out "$out/large_model-2-tp.json"
fi

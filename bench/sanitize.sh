#!/usr/bin/env bash
# Every kernel of the CUDA backend under compute-sanitizer, on a GPU: bench/sanitize.sh [TOOL...]
#
# TOOL is memcheck and racecheck unless named (initcheck and synccheck are the others there are). The
# selection runs each kernel at sizes with partial tiles, padding and page ends, and leaves out what
# only repeats them, since a checked kernel takes ten to a hundred times as long. Needs what the tests
# need, and compute-sanitizer: a CUDA toolkit has it, and so has the package
# nvidia-cuda-sanitizer-api. Exits non-zero when a tool reports anything or a test fails.
set -euo pipefail
cd "$(dirname "$0")/.."

tools=("$@")
[ ${#tools[@]} -gt 0 ] || tools=(memcheck racecheck)

attention='windows and (1- or 65 or 200) or chunks_of and f16 or padded or softcap or share
  or values_come or grouping'
chosen="(test_backend_ops and cuda)
  or (test_cuda_attention and ($attention))
  or (test_cuda_matmul and (q4_K or q5_0 or f16) or side_by_side or gated or padded or bias_and)
  or (test_cuda_fused and (f32-4 or f16-4 or q8_0-4 or ffn or residual))
  or (test_cuda_sample and (7- or 4097 or broken))
  or (test_cuda_engine and failed_step and download)
  or (test_cuda_models and default and qwen2)"

# Kernels are compiled before, where nothing slows the compiler down.
python -m pytest -q -x -p no:cacheprovider -m cuda -k "${chosen//$'\n'/ }" tests

for tool in "${tools[@]}"; do
  echo "+ compute-sanitizer --tool $tool"
  # the driver's own refusals are answers that cuda.core asks for
  compute-sanitizer --tool "$tool" --target-processes application-only --error-exitcode 9 \
    --report-api-errors no \
    python -m pytest -q -x -p no:cacheprovider --timeout 0 -m cuda -k "${chosen//$'\n'/ }" tests
done

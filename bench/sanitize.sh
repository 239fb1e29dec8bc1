#!/usr/bin/env bash
# The CUDA kernels under compute-sanitizer, on a GPU:
#
#   bench/sanitize.sh [-k EXPRESSION] [-p PIECE/OF] [-j JOBS] [-l SECONDS] [-o FOLDER] [TOOL...]
#
# TOOL is memcheck and racecheck unless named (initcheck and synccheck are the others there are). The
# usual selection runs each kernel at sizes with partial tiles, padding and page ends, and leaves out
# what only repeats them, since a checked kernel takes ten to a hundred times as long; -k takes
# another one (as pytest's). The tests are dealt out to JOBS processes (8), each of which may take
# SECONDS (480); -p 1/2 runs the first half of them, where not all fit one sitting. -o keeps logs.
#
# The last lines are a verdict for each tool. Exits non-zero unless all are clean. Needs what the
# tests need, and compute-sanitizer: a CUDA toolkit has it, and so has the package
# nvidia-cuda-sanitizer-api. What racecheck tells depends on its version: docs/cuda.md.
set -euo pipefail
cd "$(dirname "$0")/.."

attention='(single_rows and (64 or 80 or 128 or 256) and not every)
  or (chunks_of and (64 or 80 or 128 or 256)) or (windows and (1- or 65 or 200)) or softcap
  or share or values_come or (grouping and (14 or 9-3)) or alone_equals'
contract='(past_the_history or outliers and shifted) and (64 or 80 or 128 or 256)'
selection="(test_backend_ops and cuda)
  or (test_cuda_attention.py and ($attention))
  or (test_cuda_attention_contract and ($contract))
  or (test_cuda_matmul.py and (single_rows or many_rows or many_outputs or gated or padded)
      and (q4_K or q6_K or q5_0 or q2_K or iq4_xs or f16 or gated or padded))
  or (test_cuda_matmul.py and every_tile and f16)
  or (test_cuda_matmul.py and (side_by_side or bias_and or normed))
  or (test_cuda_fused and (f32-4 or f16-4 or q8_0-4 or ffn or residual or handed))
  or test_cuda_projections or (test_cuda_embed and packed and (q4_K or q3_K or q8_0))
  or (test_cuda_sample and (7- or 4097 or broken))
  or (test_cuda_engine and failed_step and download)
  or (test_cuda_models and default and (qwen2 or gemma3))"
part=1/1 jobs=8 limit=480 kept=
while getopts k:p:j:l:o: option; do
  case $option in
    k) selection=$OPTARG ;;
    p) part=$OPTARG ;;
    j) jobs=$OPTARG ;;
    l) limit=$OPTARG ;;
    o) kept=$OPTARG ;;
    *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))
tools=("$@")
[ ${#tools[@]} -gt 0 ] || tools=(memcheck racecheck)

logs=$kept
if [ -n "$logs" ]; then
  mkdir -p "$logs"
else
  logs=$(mktemp -d)
  trap 'rm -rf "$logs"' EXIT
fi
# a file that needs what is not installed here cannot be read: it is told, and the others are taken
python -m pytest -q --collect-only -m cuda -k "${selection//$'\n'/ }" tests >"$logs/collected" 2>&1 ||
  grep '^ERROR' "$logs/collected" >&2 || cat "$logs/collected" >&2
grep '::' "$logs/collected" | grep -v '^ERROR' |
  awk -v i="${part%/*}" -v n="${part#*/}" 'NR % n == i % n' >"$logs/tests" || true
n_tests=$(wc -l <"$logs/tests")
[ "$n_tests" -gt 0 ] || { echo "no test is selected" >&2; exit 2; }

# One process' share of the tests: run JOB COMMAND...
run() {
  local job=$1 mine
  shift
  mapfile -t mine < <(awk -v i="$job" -v n="$jobs" 'NR % n == i' "$logs/tests")
  [ ${#mine[@]} -gt 0 ] || return 0
  timeout "$limit" "$@" python -m pytest -q -p no:cacheprovider --timeout 0 -m cuda "${mine[@]}"
}

# All shares at the same time, with a log and an exit status each: all NAME COMMAND...
all() {
  local name=$1 job
  shift
  for ((job = 0; job < jobs; job++)); do
    { run "$job" "$@" >"$logs/$name.$job" 2>&1 && echo 0 || echo $?; } >"$logs/$name.$job.status" &
  done
  wait
}

# What came of all shares of a tool; the logs of those that are not clean go to stderr.
verdict() {
  local tool=$1 seconds=$2 job status found=clean passed=0 more=
  for ((job = 0; job < jobs; job++)); do
    status=$(<"$logs/$tool.$job.status")
    more=$(grep -o '[0-9]* passed' "$logs/$tool.$job" | tail -n 1 || true)
    more=${more%% *}
    passed=$((passed + ${more:-0}))
    [ "$status" -eq 0 ] && continue
    sed "s/^/$tool.$job: /" "$logs/$tool.$job" | tail -n 30 >&2
    if grep -q 'Device not supported' "$logs/$tool.$job"; then
      found="refused by this machine"
    elif [ "$status" -eq 124 ]; then
      [ "$found" != clean ] || found="unfinished after $limit s"
    else
      found=$(grep -h 'ERROR SUMMARY\|RACECHECK SUMMARY' "$logs/$tool.$job" | tail -n 1 || true)
      found="not clean: ${found:-exit status $status}"
    fi
  done
  [ "$passed" -gt 0 ] || [ "$found" != clean ] || found="nothing ran"
  # each fault once, whatever its place in the machine code, and how often it was told
  cat "$logs/$tool".[0-9]* | grep -h '^[.sF=]*=\{9\} *\(Error:\|Warning:\|Invalid\|and \)' |
    sed 's/^[.sF]*=* *//; s/+0x[0-9a-f]*//; s/ \[[0-9]* hazards\]//' | sort | uniq -c >&2 || true
  echo "$tool: $found ($passed of $n_tests tests passed, part $part, $seconds s)"
  [ "$found" = clean ]
}

# Kernels are compiled before, where nothing slows the compiler down; those of the sweeps once.
PYTHONPATH=tests${PYTHONPATH:+:$PYTHONPATH} python -c '
from cuda_layers import prepare
from minfer.backends import create_backend
from minfer.settings import Settings

backend = create_backend("cuda", Settings())
prepare(backend)
backend.close()
'
all plain env
verdict plain "$SECONDS"
verdicts=() failed=0
for tool in "${tools[@]}"; do
  began=$SECONDS
  # the driver's own refusals are answers that cuda.core asks for; launches that overlap would share
  # their shared memory, as racecheck sees it
  all "$tool" compute-sanitizer --tool "$tool" --target-processes application-only \
    --error-exitcode 9 --report-api-errors no --force-blocking-launches
  verdicts+=("$(verdict "$tool" $((SECONDS - began)))") || failed=1
done
printf '%s\n' "${verdicts[@]}"
exit "$failed"

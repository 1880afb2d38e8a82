#!/bin/bash
# Data and training on a CUDA machine; run again to go on from where STOP ended it. OUT: folder for results.
set -uo pipefail
cd "$(dirname "$0")" || exit 1
OUT=${OUT:?folder for results}
T=${TMPDIR:-/tmp}
export PYTHONUNBUFFERED=1 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
command -v nvidia-smi >/dev/null && nvidia-smi -L
[ -f tokenizer.json ] || cp ../../models/lily-demo/tokenizer.json .
mkdir -p "$OUT"
if [ ! -d "$T/tinydata" ]; then
  mkdir -p "$T/tinydata"
  OMP_NUM_THREADS=1 setsid nohup python3 corpus.py shards "$T/tinydata" --procs "${PROCS:-13}" --tokens "${TOKENS:-500e6}" \
    --per "${PER:-2e6}" --long 0.3 >"$T/gen.log" 2>&1 </dev/null &
fi
INIT=()
[ -d w ] && INIT=(--init w --start "${START:-0}")
python3 train.py --data "$T/tinydata" --state "$T/tinystate.pt" --out "$OUT" --total "${TOTAL:-900}" --stop "${STOP:-900}" \
  "${INIT[@]}" "$@"
rc=$?
echo "train rc $rc"; tail -n 2 "$T/gen.log"; ls -la "$OUT"
exit $rc

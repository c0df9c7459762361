#!/usr/bin/env bash
# Run studies of benchmarks/fair_studies.py on a machine without network, in calls of limited time.
#
#   bash benchmarks/run_offline.sh SECONDS OPTIONS...     (options of fair_studies.py)
#   bash benchmarks/run_offline.sh 0                      (only unpack, for parts that come in a call of their own)
#
# The parts that benchmarks/pack_offline.py made are unpacked, unless an earlier call did so. SECONDS after the start of
# this script, the studies are interrupted. They get PACK_SECONDS to stop; then they are killed, which leaves their state
# consistent. The results are packed into OUT:
#
#   state.tar.xz     unfinished studies. Put it into PARTS, in place of an older one: the next call resumes them.
#   finished.tar.xz  finished studies: tables, reports and runs without models
#   log.txt, usage.csv (use of the GPU, every 5 seconds), summary.md
#
# Files above 15 MB are split (state.tar.xz.00, .01, ...). Such parts are read, too. If WORK is still there in the next
# call, the studies continue from there, and the state in PARTS is not read.
#
# Variables:
#   PARTS         the folder that pack_offline.py made (default: offline, in the repository)
#   WORK          the folder of the studies (default: ~/headwise-studies). The state of a study contains absolute paths:
#                 use the same folder in all calls.
#   OUT           the folder for the results (default: WORK/packed)
#   SITE          the folder for packages (default: WORK/site); /dev/shm/headwise-site is faster than a slow disk
#   MODEL         the name of the model's folder (default: minilm)
#   JOBS          processes of all studies (default: 14)
#   AT_ONCE       studies at the same time, which share JOBS (default: 1)
#   PACK_SECONDS  (default: 12)
#   PYTHON        a Python with torch and transformers (default: python3)
#   MPS           no: without NVIDIA's multi-process service
set -u
case ${1:-} in '' | *[!0-9]*) echo "usage: bash benchmarks/run_offline.sh SECONDS OPTIONS..." >&2; exit 2 ;; esac
seconds=$1
end=$((SECONDS + seconds)); shift
repo=$(cd "$(dirname "$0")/.." && pwd)
parts=${PARTS:-$repo/offline}
work=${WORK:-$HOME/headwise-studies}
out=${OUT:-$work/packed}
site=${SITE:-$work/site}
model=${MODEL:-minilm}
python=${PYTHON:-python3}
pack_seconds=${PACK_SECONDS:-12}
mkdir -p "$work/out" "$work/prepared" "$site" "$out"
parts=$(cd "$parts" && pwd) && work=$(cd "$work" && pwd) && out=$(cd "$out" && pwd) && site=$(cd "$site" && pwd) || exit 2
exec > >(tee -a "$out/log.txt") 2>&1
say() { echo "[$SECONDS s] $*"; }

# Unpack, all parts at the same time. A file with the size of an archive marks that it is unpacked.
pids=()
unpack() { # ARCHIVE FOLDER
    local marker size
    marker=$2/.unpacked-$(basename "$1")
    size=$(stat -c %s "$1")
    [ "$(cat "$marker" 2> /dev/null)" = "$size" ] && return
    xz -dc "$1" | tar xf - -C "$2" && echo "$size" > "$marker"
}
unpack_state() {
    cat "$parts"/state.tar.xz* | xz -dc | tar xf - -C "$work/out" && touch "$work/.unpacked-state"
}
copy_model() {
    rm -rf "$work/$model.part"
    cp -r "$parts/$model" "$work/$model.part" && mv "$work/$model.part" "$work/$model"
}
set -o pipefail
[ -e "$parts/site.tar.xz" ] && { unpack "$parts/site.tar.xz" "$site" & pids+=($!); }
[ -e "$parts/guides.tar.xz" ] && { unpack "$parts/guides.tar.xz" "$site" & pids+=($!); }
for archive in "$parts/data.tar.xz" "$parts/imdb.tar.xz"; do
    [ -e "$archive" ] && { unpack "$archive" "$work" & pids+=($!); }
done
if compgen -G "$parts/state.tar.xz*" > /dev/null && ! [ -e "$work/.unpacked-state" ]; then
    unpack_state & pids+=($!)
fi
[ -e "$parts/glove.npz" ] && { cp "$parts/glove.npz" "$work/" & pids+=($!); }
[ -e "$parts/$model/config.json" ] && ! [ -e "$work/$model" ] && { copy_model & pids+=($!); }
wait_for_parts() {
    local pid failed=no
    for pid in "${pids[@]}"; do wait "$pid" || failed=yes; done
    [ $failed = no ] || { say "error: a part of $parts cannot be unpacked; is it complete?"; exit 1; }
}
if [ "$seconds" = 0 ]; then
    wait_for_parts
    say "unpacked to $work"
    exit
fi

# CUDA MPS: processes use the GPU at the same time.
mps=no
if [ "${MPS:-yes}" = yes ] && command -v nvidia-cuda-mps-control > /dev/null; then
    export CUDA_MPS_PIPE_DIRECTORY=/tmp/headwise-mps-$UID CUDA_MPS_LOG_DIRECTORY=/tmp/headwise-mps-log-$UID
    mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
    nvidia-cuda-mps-control -d && mps=yes
    if [ $mps = yes ] && ! timeout 60 "$python" -c 'import torch; torch.ones(2, device="cuda").sum().item()'; then
        say "MPS does not work here; without it"
        echo quit | timeout 10 nvidia-cuda-mps-control
        mps=no
    fi
    [ $mps = yes ] || unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
fi
wait_for_parts
stop_mps() { [ $mps = no ] || echo quit | timeout 10 nvidia-cuda-mps-control; }
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
packed=$(cat "$site/site-packages/python-version" 2> /dev/null || echo "$version")
if [ "$version" != "$packed" ]; then
    say "error: site.tar.xz is for Python $packed, but $python is Python $version; set PYTHON, or pack with --python $version"
    stop_mps
    exit 1
fi
export PYTHONPATH=$repo/src:$site/site-packages HF_HUB_OFFLINE=1 HF_HOME=$work/hf OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1
export TOKENIZERS_PARALLELISM=false
[ -d "$site/wordnet" ] && export WNSEARCHDIR=$site/wordnet
say "unpacked; MPS: $mps; $("$python" -c 'import torch; print("torch", torch.__version__, "CUDA:", torch.cuda.is_available())')"

# The use of the machine.
(
    echo "seconds,gpu_percent,gpu_mib,load"
    while sleep 5; do
        gpu=$(nvidia-smi --query-gpu=utilization.gpu,memory.used --format=csv,noheader,nounits | head -n 1 | tr -d ' ')
        echo "$SECONDS,${gpu:-,},$(cut -d' ' -f1 /proc/loadavg)"
    done
) > "$out/usage.csv" 2> /dev/null &
usage=$!

# Run.
cd "$work" || exit 2
options=(--prepared prepared --out out --jobs "${JOBS:-14}" --at-once "${AT_ONCE:-1}")
if [ -e "$model/config.json" ]; then options+=(--model "$model"); else say "no model $model: no fine-tuning and guiding"; fi
[ -e glove.npz ] && options+=(--vectors glove.npz)
[ -d multi30k ] && options+=(--pairs multi30k)
[ -d scifact ] && options+=(--scifact scifact)
setsid "$python" "$repo/benchmarks/fair_studies.py" "${options[@]}" "$@" & studies=$!
while kill -0 $studies 2> /dev/null && [ $SECONDS -lt $end ]; do sleep 0.5; done
interrupted=no
if kill -0 $studies 2> /dev/null; then
    say "time is over"
    interrupted=yes
    kill -TERM $studies
    stop=$((SECONDS + pack_seconds))
    while kill -0 $studies 2> /dev/null && [ $SECONDS -lt $stop ]; do sleep 0.2; done
    kill -0 $studies 2> /dev/null && { say "killed"; kill -KILL -- -$studies; sleep 1; }
fi
wait $studies
status=$?
say "studies ended with status $status"
[ $interrupted = no ] || status=0
kill $usage

# Pack.
cd "$work/out" || exit 2
cp -f summary.md "$out/" 2> /dev/null
finished=() unfinished=()
for study in */study.yaml; do
    study=${study%/study.yaml}
    [ -d "$study" ] || continue
    if [ -e "$study/finished" ]; then finished+=("$study"); else unfinished+=("$study"); fi
    [ -e "$study.log" ] && cp "$study.log" "$study/log.txt"
done
pack() { # NAME STUDY...
    local name=$1; shift
    rm -f "$out/$name" "$out/$name".[0-9]*
    [ $# = 0 ] && return
    tar cf - --exclude='*.safetensors' --exclude=checkpoints --exclude=.tokens --exclude='*.bin' --exclude='*.pt' \
        --exclude=tokenizer.json --exclude=vocab.txt --exclude='worker-*.log' --exclude='*/runs/*.png' \
        --exclude='*/runs/*/report.html' "$@" | xz -2 -T0 > "$out/$name"
    if [ "$(stat -c %s "$out/$name")" -gt 15000000 ]; then
        split -b 15000000 -d "$out/$name" "$out/$name." && rm "$out/$name"
    fi
}
pack state.tar.xz "${unfinished[@]}"
pack finished.tar.xz "${finished[@]}"
for study in "${unfinished[@]}"; do echo "== $study (unfinished)"; tail -n 4 "$study.log" 2> /dev/null; done
stop_mps
say "packed: finished ${finished[*]:-none}; unfinished ${unfinished[*]:-none}"
ls -l "$out"
exit $status

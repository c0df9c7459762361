#!/usr/bin/env bash
# Run the study of long documents on all its sets at the same time, and adapt the model to IMDB.
#
#   python benchmarks/prepare_long_documents.py DATA_DIR --model MODEL_DIR --out long
#   bash benchmarks/run_long_documents.sh SECONDS long MODEL_DIR OUT
#   bash benchmarks/run_long_documents.sh cost long MODEL_DIR OUT          (alone on a GPU)
#
# OUT gets NAME.jsonl and NAME.log for each set, `adapted.jsonl` for the models adapted to IMDB, and the adapted model in
# OUT/models. The same call, repeated, continues. After the given number of seconds, all is stopped; a trial that runs is
# lost. To continue on another machine, copy the .jsonl files to OUT there. Adaptation needs headwise[train].
#
# Variables: JOBS, the number of trials of IMDB at the same time (default: 9; the other sets add 9); PYTHON; and SITE, a
# folder of packages that only the adaptation needs. If NVIDIA's multi-process service is installed, it is started.
set -u
[ $# = 4 ] || { sed -n '2,14s/^# \{0,1\}//p' "$0" >&2; exit 2; }
limit=$1
repo=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$4/models"
data=$(cd "$2" && pwd) && model=$(cd "$3" && pwd) && out=$(cd "$4" && pwd) || exit 2
python=${PYTHON:-python3}
adapted=$out/models/imdb
export PYTHONPATH=$repo/src HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
cd "$out" || exit 2

# The options of each set.
options() { # NAME
    case $1 in
    imdb) echo "--data $data/imdb.csv" ;;
    adapted) echo "--data $data/imdb.csv --cells adapt@512 adapt@1024 adapt@2048" ;;
    products)
        echo "--data $data/products.csv --min-tokens 450 --train-rows 350 --dev-rows 120 --test-rows 250 --epochs 5"
        echo "--cells tfidf@512 truncate@512 head-tail@512 windows@512 tile@2048 interpolate@2048 tile+distance@2048"
        echo "tile+relative@2048"
        ;;
    scifact)
        echo "--data $data/scifact.csv --min-tokens 0 --train-rows 700 --dev-rows 105 --test-rows 300"
        echo "--cells tfidf@512 truncate@512 tile@1024 interpolate@1024 tile+distance@1024 tile+relative@1024"
        ;;
    ag-news)
        echo "--data $data/ag-news.csv --min-tokens 0 --test-rows 2000"
        echo "--cells tfidf@512 truncate@512 interpolate@1024 tile+distance@1024 tile+relative@1024"
        ;;
    esac
}
study() { # NAME OPTIONS...
    local name=$1; shift
    # shellcheck disable=SC2046
    "$python" "$repo/benchmarks/long_documents.py" --model "$model" --adapted "$adapted" --out "$name.jsonl" \
        $(options "$name") "$@" >> "$name.log" 2>&1
}
if [ "$limit" = cost ]; then
    for name in imdb adapted; do
        if [ "$name" = imdb ] || [ -e "$adapted/config.json" ]; then study $name --cost; fi
    done
    exit
fi

minutes() { "$python" -c "print(max(0.05, ($limit - $SECONDS - 30) / 60))"; }
run() { # NAME JOBS
    study "$1" --jobs "$2" --minutes "$(minutes)"
    echo "[$SECONDS s] $1: exit code $?, $(wc -l < "$1.jsonl") lines"
}
adapt() {
    if ! [ -e adapted.done ]; then
        local arguments=(--data "$data/imdb.txt" --max-length 2048 --extend-positions tile --steps 3000 --batch-size 8
            --learning-rate 1e-4 --save-steps 1000)
        [ -e "$adapted/adapt.yaml" ] && arguments=(--resume) || arguments=("$model" "${arguments[@]}")
        PYTHONPATH=$repo/src:${SITE:-} "$python" -m headwise adapt "${arguments[@]}" --out "$adapted" >> adapt.log 2>&1 &&
            touch adapted.done
        echo "[$SECONDS s] adapt: $(tail -n 1 adapt.log | cut -c1-200)"
    fi
    [ -e adapted.done ] && run adapted 4
}
if command -v nvidia-cuda-mps-control > /dev/null; then
    export CUDA_MPS_PIPE_DIRECTORY=/tmp/headwise-mps-$UID CUDA_MPS_LOG_DIRECTORY=/tmp/headwise-mps-log-$UID
    mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
    nvidia-cuda-mps-control -d
fi
set -m  # each set in a process group of its own
groups=()
run imdb "${JOBS:-9}" & groups+=($!)
adapt & groups+=($!)
run scifact 2 & groups+=($!)
run products 2 & groups+=($!)
run ag-news 1 & groups+=($!)
while [ $SECONDS -lt "$limit" ] && [ -n "$(jobs -r)" ]; do sleep 1; done
for group in "${groups[@]}"; do kill -KILL -- "-$group" 2> /dev/null; done
wc -l ./*.jsonl

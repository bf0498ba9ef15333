#!/usr/bin/env bash
# Repeats the run in /srv/runs/7/case-a by hand, into another folder.
# usage: command.sh [NEW_FOLDER]    (without one: a new folder under ${TMPDIR:-/tmp})
# Not written here, taken from your environment where it is set: WANDB_API_KEY
set -euo pipefail
folder=${1:-$(mktemp -d "${TMPDIR:-/tmp}/scaleperf-repeat.XXXXXX")}
mkdir -p -- "$folder"
folder=$(cd -- "$folder" && pwd)
if [ -n "$(ls -A -- "$folder")" ]; then
  echo "expected an empty folder, found files in $folder" >&2
  exit 2
fi
echo "writing into $folder" >&2
cd -- /srv
exec env -i \
  ${WANDB_API_KEY+"WANDB_API_KEY=${WANDB_API_KEY}"} \
  OMP_NUM_THREADS=1 \
  PATH=/usr/bin:/bin \
  PYTHONUNBUFFERED=1 \
  SCALEPERF_CASE=cpu-2gpu-fsdp2-dp1-none-lbs2 \
  SCALEPERF_RUN_DIR="$folder" \
  /opt/job/bin/python \
  -m \
  torch.distributed.run \
  --nnodes=1 \
  --nproc-per-node=2 \
  --rdzv-backend=c10d \
  --rdzv-endpoint=localhost:0 \
  --rdzv-id=scaleperf \
  --local-addr=localhost \
  --role=rank \
  --tee=3 \
  --log-dir="$folder"/torchrun \
  -m \
  pytest_scaleperf.titan.entry \
  --module \
  deepseek_v3 \
  --config \
  deepseek_v3_debugmodel \
  --parallelism.data_parallel_shard_degree \
  2 \
  --parallelism.data_parallel_replicate_degree \
  1 \
  --parallelism.tensor_parallel_degree \
  1 \
  --parallelism.context_parallel_degree \
  1 \
  --parallelism.pipeline_parallel_degree \
  1 \
  --parallelism.expert_parallel_degree \
  1 \
  --training.local_batch_size \
  2 \
  --training.global_batch_size \
  4 \
  --training.seq_len \
  256 \
  --training.steps \
  10 \
  --metrics.log_freq \
  2 \
  --metrics.enable_tensorboard \
  --metrics.save_for_all_ranks \
  --dump_folder \
  "$folder" \
  --debug.seed \
  0 \
  --comm.init_timeout_seconds \
  180 \
  --comm.train_timeout_seconds \
  30 \
  --parallelism.spmd_backend \
  partial_dtensor \
  --training.disable_cuda_graphs \
  --compile.no-enable \
  --debug.moe_force_load_balance \
  activation-checkpoint:none

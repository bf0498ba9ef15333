#!/usr/bin/env bash
# A stage of the nightly: the 512-GPU cases whose 128-GPU parents passed tonight. See docs/slurm.md.
#SBATCH --job-name=nightly-512
#SBATCH --nodes=64
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --no-kill
#SBATCH --no-requeue
#SBATCH --time=04:00:00
#SBATCH --signal=B:TERM@180
#SBATCH --output=nightly-512.%j.log
set -euo pipefail

# A folder that every node sees; the stages find each other's records in it.
runs=${SCALEPERF_RUNS:-$PWD/.scaleperf}

# exec: the SIGTERM of --signal reaches pytest itself, which ends its cases and writes what it knows.
exec "${PYTHON:-python3}" -m pytest suites/ --gpus 512 -k 512gpu --run-dir "$runs" \
  --junitxml="nightly-512.xml" "$@"

#!/bin/bash
module load cuda/12.8
export NCCL_IB_HCA=mlx5
exec srun --job-name=s.case --nodes=2 --ntasks=2 --ntasks-per-node=1 --gres=gpu:8 --export=ALL --label --unbuffered --kill-on-bad-exit=1 --mpi=none python -I -S '/shared/runs/case 1/1/node.py' '/shared/runs/case 1/1' python -m torch.distributed.run --nnodes=2 'it'"'"'s'

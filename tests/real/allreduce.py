"""One rank of a run without torchtitan: sums the ranks' numbers over gloo, and says where it is."""

from __future__ import annotations

import os
import socket

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
print(f"rank {dist.get_rank()} of {dist.get_world_size()} on {socket.gethostname()}: {total.item()}", flush=True)  # noqa: T201
print(f"master {os.environ['MASTER_ADDR']}", flush=True)  # noqa: T201 - what the test reads
dist.destroy_process_group()

"""Names of kernels and of collective calls: what class they are, and how to write them short."""

from __future__ import annotations

import re
from functools import cache

# NCCL, RCCL, MSCCL, NVSHMEM and its ROCm kin; PyTorch's and vLLM's symmetric-memory collectives; DeepEP.
_COMMUNICATION = re.compile(
    r"^(?:nccl|rccl|msccl|hccl|oneccl)|nccl(?:Dev|Symk|Kernel)|nvshmem|rocshmem|mscclpp"
    r"|deep_ep::|dpsk::ep::|multimem_|symmetric_memory::|(?:one|two)_shot_all_?reduce|cross_device_reduce"
    r"|(?:put|wait)_signal_kernel",
    re.IGNORECASE,
)
# Other libraries' collectives by what they do, unless the same kernel computes (a GEMM with its collective fused in)
# or only packs data for one.
_BY_WHAT_IT_DOES = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?(?:to|2)_?all", re.IGNORECASE)
_COMPUTES = re.compile(r"gemm|matmul|cutlass|nvjet|attn|attention|copy|quant", re.IGNORECASE)

_OPS = (
    ("reducescatter", "reduce_scatter"),
    ("allreduce", "all_reduce"),
    ("crossdevicereduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("allall", "all_to_all"),
    ("dispatch", "dispatch"),
    ("combine", "combine"),
    ("sendrecv", "send_recv"),
    ("broadcast", "broadcast"),
    ("barrier", "barrier"),
    ("signal", "barrier"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("send", "send"),
    ("recv", "recv"),
    ("put", "put"),
    ("reduce", "reduce"),
)
UNNAMED = "communication"

_FAMILIES = tuple(
    (family, re.compile(pattern, re.IGNORECASE))
    for family, pattern in (
        ("fused (triton)", r"^triton_"),
        ("attention", r"flash|fmha|sdpa|attention|_attn|mha_|cudnn::fusion"),
        ("grouped gemm", r"GroupProblemShape|grouped_?gemm|grouped_mm"),
        ("gemm", r"gemm|nvjet|matmul|cublas|xmma|Cijk_|gemv|splitKreduce|cutlass"),
        ("optimizer", r"Fused(?:Adam|Sgd|Lamb|Optimizer)|adam|lamb_|muon"),
        ("foreach", r"multi_tensor_apply"),
        ("sort and scan", r"radix|_sort|sort_|topk|scan|cub::|histogram"),
        ("index", r"index|gather|scatter|embedding|grad_weight"),
        ("softmax and loss", r"softmax|nll_loss|cross_entropy"),
        ("norm", r"norm"),
        ("cast and copy", r"copy|cast|cat_?array|transpose"),
        ("reduction", r"reduce"),
        ("elementwise", r"elementwise|fill"),
    )
)
_FSDP_COPY = re.compile(r"split_with_sizes_copy|chunk_cat")

# What NCCL appends: the name of a representative kernel (generate.py, best_kernel), never the algorithm that ran.
_REPRESENTATIVE = re.compile(r"_(?:RING|TREE|COLLNET\w*?|NVLS\w*?|PAT)_(?:LL128|LL|SIMPLE)$")
_FUNCTOR = re.compile(r"\b(\w*(?:Functor|MathFunctor)\w*|\w+_kernel_cuda|\w+_kernel_impl)\b")


def is_communication(name: str) -> bool:
    """Whether a kernel of this name communicates, by our lists; Inductor's ``triton_…`` computes, whatever follows."""
    if name.startswith("triton_"):
        return False
    return bool(_COMMUNICATION.search(name) or (_BY_WHAT_IT_DOES.search(name) and not _COMPUTES.search(name)))


def operation(name: str) -> str:
    """The collective that a call's or kernel's name says (``_allgather_base`` is ``all_gather``)."""
    letters = re.sub("[^a-z]", "", name.partition("(")[0].lower())
    return next((op for part, op in _OPS if part in letters), UNNAMED)


def family(name: str) -> str:
    """The class of a compute kernel, for the table of kernel times."""
    return next((family for family, pattern in _FAMILIES if pattern.search(name)), "other")


def is_fsdp_copy(name: str) -> bool:
    """Whether the kernel is one of FSDP's own copies in and out of its flat buffers."""
    return bool(_FSDP_COPY.search(name))


@cache
def short(name: str) -> str:
    """A kernel's name without template arguments, but with the functor that tells such kernels apart."""
    if name.startswith("_Z"):
        return _demangled(name)
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    base = re.split(r"[<(]", plain, maxsplit=1)[0].rpartition("::")[2].strip() or plain[:60]
    base = _REPRESENTATIVE.sub("", base)
    inner = _FUNCTOR.search(plain, len(base))
    return f"{base}[{inner[1]}]" if inner and inner[1] not in base else base


def _demangled(name: str) -> str:
    """The leading names of a mangled C++ symbol, and what kind of GEMM it is if it says so."""
    at, parts = 3 if name.startswith("_ZN") else 2, []
    while match := re.compile(r"\d+").match(name, at):
        stop = match.end() + int(match[0])
        parts.append(name[match.end() : stop])
        at = stop
    detail = next((word for word in ("GroupProblemShape", "GemmUniversal") if word in name), None)
    return "::".join(parts or [name[:60]]) + (f"[{detail}]" if detail else "")

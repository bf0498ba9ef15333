"""What a trace says of its process groups, its device and each collective call, in our words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from pytest_scaleperf.model import TraceError
from pytest_scaleperf.trace.columns import Collective, Group
from pytest_scaleperf.trace.decode import Args, Header

# torch's c10d:: operators with an output and an input tensor take the output first
# (torch/csrc/distributed/c10d/Ops.cpp); all others take what they send.
_OUTPUT_FIRST = re.compile(r"allgather|reduce_scatter|alltoall|gather_$|scatter_$")
_NO_DTYPE = ("", "Scalar", "ScalarList", "TensorList", "Device")
_MOST_RANKS = 1 << 20
_RANK_IN_NAME = re.compile(r"rank[_-]?(\d+)")


class Process(NamedTuple):
    """Who recorded a trace; None where the trace does not say it."""

    rank: int | None
    world_size: int | None
    groups: dict[str, Group]


def from_params(args: Args) -> Collective:
    """The call as record_param_comms and NCCL's kernels describe it. Raises ValueError or TypeError for no number."""
    return Collective(
        str(args.collective),
        _number(args.in_elements),
        _number(args.out_elements),
        _number(args.group_size),
        _text(args.dtype),
        _text(args.group_name),
        _text(args.group_desc),
        _text(args.group_ranks),
    )


def from_shapes(name: str, args: Args) -> Collective | None:
    """The call of an operator (``c10d::…``) or of gloo's work from its recorded shapes; None where it has none."""
    try:
        shapes = msgspec.json.decode(args.input_dims)
        types = msgspec.json.decode(args.input_type)
        sizes = [_elements(shape) for shape in shapes]
        dtype = next((each for each in types if each not in _NO_DTYPE), None)
    except (msgspec.DecodeError, TypeError, ValueError):
        return None
    call = name.rpartition(":")[2]
    if not sizes:
        return Collective(call)
    if _OUTPUT_FIRST.search(call) and name.startswith("c10d"):
        return Collective(call, sizes[1] if len(sizes) > 1 else None, sizes[0], dtype=dtype)
    return Collective(call, sizes[0], dtype=dtype)


def _elements(shape: list[Any]) -> int:
    """Elements of a tensor, or of a list of tensors, in which [] is a scalar; a bare [] is no tensor."""
    if any(isinstance(each, list) for each in shape):
        return sum(_elements(each) if each else 1 for each in shape)
    return int(np.prod(shape, dtype=np.int64)) if shape else 0


def device(header: Header) -> str:
    """The first device's name, ``CPU`` where the trace lists none."""
    properties = header.deviceProperties
    if isinstance(properties, list) and properties and isinstance(properties[0], dict):
        return str(properties[0].get("name", "GPU"))
    return "CPU"


def process(header: Header, path: Path) -> Process:
    """Rank, world size and groups as the trace says them; the rank else from the file's name.

    Raises TraceError where distributedInfo has another form than Kineto's.
    """
    info = header.distributedInfo if isinstance(header.distributedInfo, dict) else {}
    named = _RANK_IN_NAME.search(path.name)
    try:
        found = Process(
            _number(info.get("rank", named[1] if named else None)),
            _number(info.get("world_size")),
            {str(group["pg_name"]): _group(group) for group in info.get("pg_config") or ()},
        )
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise TraceError(
            f"{path}: distributedInfo is not what Kineto writes ({error!r}): {str(info)[:200]!r}"
        ) from error
    _check(found, path)
    return found


def _check(found: Process, path: Path) -> None:
    """Raises TraceError for a rank that cannot be."""
    rank, world = found.rank, found.world_size
    if world is not None and world > _MOST_RANKS:
        raise TraceError(f"{path}: expected at most {_MOST_RANKS} ranks, found {world} ranks in distributedInfo")
    if rank is not None and not 0 <= rank < (_MOST_RANKS if world is None else world):
        of = "" if world is None else f" of {world}"
        raise TraceError(f"{path}: expected a rank from 0 to the number of ranks less one, found rank {rank}{of}")


def _group(group: dict[str, Any]) -> Group:
    ranks = tuple(int(each) for each in group.get("ranks") or ())
    return Group(str(group.get("pg_desc", "")), int(group.get("pg_size", len(ranks))), ranks)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _number(value: Any) -> int | None:  # noqa: ANN401 - whatever JSON holds
    return None if value is None else int(value)

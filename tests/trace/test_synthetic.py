"""Small traces whose split can be worked out by hand, among them those on which other tools are wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_scaleperf.model import TraceError
from pytest_scaleperf.trace.rank import analyse_rank
from pytest_scaleperf.trace.result import StepReport
from pytest_scaleperf.trace.rules import Rules
from tests.trace.script import ENGINE, US, Script, described

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT"


def only_step(script: Script, path: Path, rules: Rules | None = None) -> StepReport:
    (step,) = analyse_rank(script.write(path / "trace.json"), rules or Rules()).steps
    return step


def split_us(step: StepReport) -> tuple[float, float, float, float]:
    split = step.split
    return tuple(x / US for x in (split.compute, split.exposed_communication, split.exposed_copy, split.idle))  # type: ignore[return-value]  # four


def at(script: Script, name: str, start: float, end: float, **more: Any) -> None:
    """An event by its microseconds."""
    script.kernel(name, round(start * US), round(end * US), 0, **more)


def test_communication_inside_two_overlapping_compute_streams(tmp_path: Path) -> None:
    script = Script()
    at(script, GEMM, 0, 120)
    at(script, GEMM, 80, 200, stream=8)
    at(script, NCCL, 50, 150, stream=20)
    step = only_step(script, tmp_path)
    assert split_us(step) == (200, 0, 0, 0)
    assert (step.communication, step.hidden) == (100 * US, 100 * US)


def test_partial_overlap_touching_zero_length_and_concurrent(tmp_path: Path) -> None:
    """Compute 0-100 and 100-150, comm 140-200 and 160-180, a copy 190-230, nothing to 250, compute 250-260."""
    script = Script()
    for name, start, end, stream, cat in (
        (GEMM, 0, 100, 7, "kernel"),
        (GEMM, 100, 150, 7, "kernel"),
        (GEMM, 120, 120, 8, "kernel"),
        (NCCL, 140, 200, 20, "kernel"),
        (NCCL, 160, 180, 21, "kernel"),
        ("Memcpy DtoD (Device -> Device)", 190, 230, 9, "gpu_memcpy"),
        (GEMM, 250, 260, 7, "kernel"),
    ):
        at(script, name, start, end, stream=stream, cat=cat)
    script.events.append(
        {"ph": "X", "cat": "gpu_user_annotation", "name": "all", "pid": 0, "tid": 7, "ts": 0, "dur": 900.0}
    )
    assert split_us(only_step(script, tmp_path)) == (160, 50, 30, 20)


def test_a_thousand_short_kernels_under_one_collective(tmp_path: Path) -> None:
    """Tools that round to microseconds find no compute and no overlap at all here."""
    script = Script()
    for index in range(1000):
        at(script, GEMM, index, index + 0.9)
    at(script, NCCL, 0, 1000, stream=20)
    assert split_us(only_step(script, tmp_path)) == (900, 100, 0, 0)


def test_back_to_back_kernels_of_1_6_us_leave_no_idle(tmp_path: Path) -> None:
    """Tools that round to microseconds find 56 % idle here."""
    script = Script()
    for index in range(1000):
        at(script, GEMM, index * 1.6, (index + 1) * 1.6)
    for index in range(0, 1500, 100):
        at(script, NCCL, index, index + 50, stream=20)
    assert split_us(only_step(script, tmp_path)) == (1600, 0, 0, 0)


COMMUNICATION = (
    "void deep_ep::intranode::dispatch<8, 256>(int4*, float*)",
    "void dpsk::ep::internode::combine<true>(void*)",
    "multimem_all_reduce_kernel<float, 16>",
    "void nvshmemi_transfer_rma_block<nvshmemi_op_t>(void*)",
    "rcclGenericKernel<1, false>",
    "ncclDevKernel_Generic_4(ncclDevKernelArgs)",
    "ncclSymkDevKernel_AllGather_STMC(ncclSymkDevWorkArgs4K)",
    "void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(void*)",
    "void (anonymous namespace)::two_shot_all_reduce_kernel<float>(float*)",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<0>(void*)",
)
COMPUTE = (
    "triton_poi_fused_all_gather_into_tensor_wait_tensor_add_3",
    "triton_red_fused_reduce_scatter_tensor_mean_0",
    "_ZN7cutlass13device_kernelIN2at4cuda6detail25enable_3x_kernel_for_sm9xINS5_10collective13CollectiveMmaE",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(float*)",
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel_Sync_dma<float>(int)",
    "cutlass_gemm_allreduce_fused",
    "at::native::detail::split_with_sizes_copy_out_contiguous_no_cast_kernel(char**)",
)


@pytest.mark.parametrize("name", COMMUNICATION)
def test_communication_is_known_by_name(name: str, tmp_path: Path) -> None:
    script = Script()
    at(script, GEMM, 0, 10)
    at(script, name, 10, 50)
    assert split_us(only_step(script, tmp_path)) == (10, 40, 0, 0)


@pytest.mark.parametrize("name", COMPUTE)
def test_compute_is_not_taken_for_communication(name: str, tmp_path: Path) -> None:
    script = Script()
    at(script, name, 0, 50)
    assert split_us(only_step(script, tmp_path)) == (50, 0, 0, 0)


def test_streams_say_nothing(tmp_path: Path) -> None:
    """DeepSeek's DualPipe casts on the communication's stream, and exporters move lanes."""
    script = Script()
    at(script, GEMM, 0, 50, stream=20)
    at(script, NCCL, 50, 60, stream=20)
    at(script, NCCL, 60, 80, stream=7)
    assert split_us(only_step(script, tmp_path)) == (50, 30, 0, 0)


def test_user_lists_come_first(tmp_path: Path) -> None:
    script = Script()
    at(script, "our_ring_exchange", 0, 30)
    at(script, "nccl_like_but_computes", 30, 70)
    rules = Rules(communication=("^our_ring",), compute=("but_computes$",))
    assert split_us(only_step(script, tmp_path)) == (30, 40, 0, 0)
    assert split_us(only_step(script, tmp_path, rules)) == (40, 30, 0, 0)


def test_a_kernel_on_both_user_lists_is_an_error(tmp_path: Path) -> None:
    script = Script()
    at(script, "our_ring_exchange", 0, 30)
    with pytest.raises(TraceError, match="both the communication and the compute list"):
        only_step(script, tmp_path, Rules(communication=("ring",), compute=("our",)))


def test_a_bad_expression_says_which_and_how_to_write_it() -> None:
    with pytest.raises(TraceError, match=r"backward: expected a regular expression, found 'mlp\(B'.*write \\\("):
        Rules(backward=("mlp(B",))


def test_copy_engine_collectives_are_communication(tmp_path: Path) -> None:
    """A copy that a collective call issued itself (External id), or between peers within one; others stay copies."""
    script = Script()
    script.operator("record_param_comms", 0, 100, External_id=7, **described("_allgather_base", 10))
    script.operator("symm_mem::all_gather", 200, 300, External_id=8)
    mem: dict[str, Any] = {"cat": "gpu_memcpy", "stream": 20}
    script.kernel(GEMM, 0, 10 * US, 5)
    script.kernel("Memcpy DtoD (Device -> Device)", 10 * US, 30 * US, 20, External_id=7, **mem)
    script.kernel("Memcpy PtoP (Device -> Device)", 30 * US, 60 * US, 250, External_id=9, **mem)
    script.kernel("Memcpy PtoP (Device -> Device)", 60 * US, 100 * US, 150, External_id=9, **mem)
    script.kernel("Memcpy DtoD (Device -> Device)", 100 * US, 105 * US, 250, External_id=9, **mem)
    step = only_step(script, tmp_path)
    assert split_us(step) == (10, 50, 45, 0)
    assert {call.op for call in step.calls} == {"all_gather"}


def test_a_collective_without_arguments_takes_them_from_its_call(tmp_path: Path) -> None:
    """Kineto loses a kernel's arguments where CUPTI's buffers arrive out of order; the External id remains."""
    script = Script()
    script.operator("record_param_comms", 0, 100, External_id=7, **described("_allgather_base", 10))
    script.kernel("ncclDevKernel_AllGather_RING_LL", 0, 10 * US, 20, External_id=7)
    (call,) = only_step(script, tmp_path).calls
    assert (call.op, call.group, call.size, call.bytes) == ("all_gather", "mesh", 2, 80)


def test_fsdp_copies_by_their_annotation(tmp_path: Path) -> None:
    """A copy launched inside FSDP::all_gather on that thread hides communication; real compute does not count."""
    script = Script()
    script.annotate("FSDP::all_gather (layers.0)", 100, 200)
    script.kernel("void multi_tensor_apply_kernel<CopyFunctor>", 0, 30 * US, 150)
    script.kernel("void multi_tensor_apply_kernel<CopyFunctor>", 30 * US, 60 * US, 150, tid=ENGINE)
    at(script, NCCL, 10, 50, stream=20)
    step = only_step(script, tmp_path)
    assert split_us(step) == (60, 0, 0, 0)
    assert step.hidden_by_copies == 20 * US
    assert {row.label for row in step.rows if row.kind == "compute"} == {"fsdp copy", "foreach"}

"""The texts that say why a run ended, as data: one rule each, with the class it proves and how much it explains."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

from pytest_scaleperf.model import Outcome


class Weight(IntEnum):
    """How much a line explains. A lower one that came of a higher one is a consequence, whoever spoke first."""

    EXIT = 0
    """Somebody's exit code or signal; says that, not why."""
    ENDING = 1
    """The scheduler or a person ended the run: decides what came after, not what came before."""
    COMMUNICATION = 2
    """A collective failed or timed out: what the other ranks see when one rank is gone."""
    CRASH = 3
    """An exception, or a process that died by itself."""
    CAUSE = 4
    """Says what the matter was."""


@dataclass(frozen=True, slots=True)
class Rule:
    """``patterns`` are tried only on lines that hold one of ``needles`` (lower case, plain text: fast to look for).

    ``even_warnings`` for lines that are decisive although they are logged as information or warnings. Named groups
    ``host``, ``rank``, ``step``, ``signal``, ``exit``, ``size``, ``bytes`` and ``why`` go into the finding.
    """

    outcome: Outcome
    weight: Weight
    needles: tuple[str, ...]
    patterns: tuple[str, ...]
    even_warnings: bool = False

    def search(self, message: str) -> re.Match[str] | None:
        """The match of the first pattern that finds one; re keeps what it compiled, and most runs need none of it."""
        return next((found for p in self.patterns if (found := re.search(p, message, re.IGNORECASE))), None)


def _rule(outcome: Outcome, weight: Weight, needles: str, *patterns: str, even_warnings: bool = False) -> Rule:
    return Rule(
        outcome=outcome,
        weight=weight,
        needles=tuple(needles.split("|")),
        patterns=patterns,
        even_warnings=even_warnings,
    )


_GPU = r"(?:CUDA|HIP|XPU|NPU|MPS|GPU)"

# GPU memory. Never the allocator's own ``memory allocation failed with OOM`` warning: its retry may succeed.
_OOM = (
    _rule(
        Outcome.OOM,
        Weight.CAUSE,
        "out of memory|outofmemory|out_of_memory",
        rf"\b{_GPU} (?:error: )?out of memory(?:\. Tried to allocate (?P<size>[\d.]+ (?:bytes|[KMGT]iB)))?",
        r"\bOutOfMemoryError: \S",
        r"Cuda failure (?:\d+ )?'out of memory'",
        r"CUDA_ERROR_OUT_OF_MEMORY|hipErrorOutOfMemory",
    ),
    _rule(
        Outcome.OOM,
        Weight.CAUSE,
        "_status_alloc_failed|cudaerrormemoryallocation|failed to cuda",
        r"(?:CUBLAS|CUDNN|CUSPARSE|HIPBLAS|CUFFT|CUSOLVER)_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation",
        r"Failed to CUDA (?:calloc|malloc|host alloc)\w*(?: async)? (?P<bytes>\d+) bytes",
    ),
)

# Memory of the host: only where the kernel, the cgroup or an allocator says so.
_HOST_OOM = (
    _rule(
        Outcome.HOST_OOM,
        Weight.CAUSE,
        "oom_kill|oom-kill|oomkilled|out of memory",
        r"Detected \d+ oom[_-]kill event",
        r"oom-kill:constraint=|\bOOMKilled\b",
        r"srun: error: (?P<host>[\w.-]+): tasks? [\d,-]+: Out Of Memory",
        r"out of memory: Kill(?:ed)? process \d+",
        even_warnings=True,
    ),
    _rule(
        Outcome.HOST_OOM,
        Weight.CAUSE,
        "memory limit|out of shared memory|insufficient shared memory",
        r"(?:slurmstepd|slurmd|srun).*exceeded (?:job |step |virtual )*memory limit",
        r"Exceeded (?:job|step) memory limit",
        r"DataLoader worker .*(?:out of|insufficient) shared memory",
        even_warnings=True,
    ),
    _rule(
        Outcome.HOST_OOM,
        Weight.CAUSE,
        "memoryerror|bad_alloc|cannot allocate memory|can't allocate memory|not enough memory|defaultcpuallocator"
        "|unable to allocate",
        r"(?:^|\s)(?:\w+\.)*_?(?:Array)?MemoryError(?:: .+|\s*)$",
        r"std::bad_alloc|\[Errno 12\] Cannot allocate memory",
        r"DefaultCPUAllocator: (?:can't allocate|not enough) memory: you tried to allocate (?P<bytes>\d+) bytes",
    ),
)

_NAN = (
    _rule(
        Outcome.NAN_LOSS,
        Weight.CAUSE,
        "not finite|non-finite|nonfinite|isnan|nan",
        r"\b(?:loss|grad(?:ient)?s?(?:[ _]norm)?)\b[^\n]{0,120}?\b(?:not finite|non-?finite|NaN)\b"
        r"(?:[^\n]*?\bstep (?P<step>\d+))?",
        r"\b(?:NaN|non-?finite)(?: or inf(?:inite)?)? (?:loss|gradient)",
        r"returned nan values in its \d+\w\w output",
        r"FloatingPointError",
    ),
)

_NODE = (
    _rule(
        Outcome.NODE_FAILURE,
        Weight.CAUSE,
        "node failure|task launch for|uncorrectable memory error|hardware error|slurmd[",
        r" ON (?P<host>[\w.-]+) CANCELLED AT \S+ DUE TO NODE FAILURE",
        r"srun: error: Node failure on (?P<host>[\w.,\[\]-]+)",
        r"Task launch for \S+ failed on node (?P<host>[\w.-]+)",
        r"UNCORRECTABLE MEMORY ERROR|mce: .*Hardware Error",
        even_warnings=True,
    ),
    _rule(
        Outcome.NODE_FAILURE,
        Weight.CAUSE,
        "xid",
        # 13, 31, 43 and 45 are mostly the program's own (NVIDIA, "XID Errors"); 63, 92 and 94 let the run go on.
        r"\bXid\b[ :]*(?:\([^)]*\))?[ :=#]*(?:(?:error|code)[ :=]*)?(?!(?:13|31|43|45|63|92|94)\b)(?P<why>\d{1,3})\b",
        r"\bSXid \([^)]*\): \d+, Fatal",
        even_warnings=True,
    ),
    _rule(
        Outcome.ERROR,
        Weight.CRASH,
        "xid",
        r"\bNVRM: Xid \([^)]*\): (?:13|31|43|45)\b",
        even_warnings=True,
    ),
    _rule(
        Outcome.NODE_FAILURE,
        Weight.CAUSE,
        "fallen off the bus|ecc error|gpu is lost|nvlink|device handle for|double bit",
        r"fallen off the bus|GPU is lost",
        r"(?:uncorrectable|double[- ]bit|unrecoverable|uncontained)[^\n]{0,40}\bECC\b|\bECC\b[^\n]{0,40}uncorrectable",
        r"(?<!non-fatal )\bNVLink\b[^\n]{0,80}\b(?:error|fault|fatal|failure|failed|inactive|is down)\b",
        r"over nvlink or a hardware error",
        r"Unable to determine the device handle for",
        even_warnings=True,
    ),
    _rule(
        Outcome.NODE_FAILURE,
        Weight.CAUSE,
        "cuda-capable device|no cuda gpus|system not yet initialized|driver initialization failed"
        "|stale file handle|input/output error|hardware error",
        r"no CUDA-capable device is detected|CUDA-capable device\(s\) is/are busy or unavailable",
        r"No CUDA GPUs are available|CUDA error: system not yet initialized|CUDA driver initialization failed",
        r"\[Errno (?:5|116)\]|CUDA error: .*hardware",
    ),
)

# A full disk under the run's folder or on a node: the run shows nothing of the configuration.
_DISK = (
    _rule(
        Outcome.DISK_FULL,
        Weight.CAUSE,
        "no space left|disk quota exceeded",
        r"No space left on device|Disk quota exceeded",
    ),
)

_CONFIG = (
    _rule(
        Outcome.CONFIG_ERROR,
        Weight.CAUSE,
        "invalid parallel dims|divisible by|must be multiple|must be a multiple|parallelism degree|dp_shard must"
        "|invalid mesh|etp=tp|support pipelining|duplicate gpu|invalid device ordinal",
        r"Invalid parallel dims|Invalid mesh (?:dim|name)|Parallelism degree should be|dp_shard must|ETP=TP or ETP=1",
        r"(?:Error|Exception): [^\n]*must be (?:evenly |a )?(?:divisible|multiple)",
        r"must be (?:a )?multiple of local batch size",
        r"does not support pipelining|Duplicate GPU detected|invalid device ordinal",
    ),
    _rule(
        Outcome.CONFIG_ERROR,
        Weight.CAUSE,
        "unrecognized|unknown option|no such option|invalid choice|missing value for|missing argument|error parsing"
        "|arguments are required|expected one argument|required options|parsing error",
        r"[Uu]nrecognized (?:options|arguments)|No such option|invalid choice: ",
        r"Missing value for argument|Error parsing --|arguments are required: |: expected one argument",
        r"─ (?:Required options|Parsing error)",
        even_warnings=True,
    ),
    _rule(
        Outcome.CONFIG_ERROR,
        Weight.CAUSE,
        "config function|cannot import|--module|--config|invalid field names|validation error|tomldecodeerror"
        "|old tokenizer",
        r"Config function '[^']*' not found|Cannot import (?:module|config_registry)",
        r"--(?:module|config) (?:is required|requires a value)",
        r"Invalid field names in|\d+ validation errors? for |TOMLDecodeError: ",
        r"You are using the old tokenizer",
    ),
)

_TIMEOUT = (
    _rule(
        Outcome.NCCL_TIMEOUT,
        Weight.COMMUNICATION,
        "watchdog|before timing out|heartbeat monitor|collective timeout",
        r"(?:\[Rank (?P<rank>\d+)\][^\n]{0,80})?Watchdog caught collective operation timeout"
        r"(?:: WorkNCCL\(SeqNum=(?P<sequence>\d+), OpType=(?P<collective>\w+)"
        r"(?:[^)\n]*Timeout\(ms\)=(?P<timeout_ms>\d+))?)?",
        r"ran for \d+ milliseconds before timing out|Heartbeat monitor timed out",
        r"watchdog got stuck for \d+|due to a collective timeout|watchdog hang",
    ),
    _rule(
        Outcome.NCCL_TIMEOUT,
        Weight.COMMUNICATION,
        "timed out|timeout",
        r"Timed out waiting \d+ ?ms for (?:recv|send)|Application timeout caused pair closure",
        r"Timed out after \d+ seconds? waiting for clients|client socket has timed out|wait timeout after \d+ ?ms",
        r"(?:Error|Exception): (?:\[[^\]]*\] )?Socket Timeout|RendezvousTimeoutError",
        r"failed to pass monitoredBarrier|monitoredBarrier[^\n]*timeout",
    ),
)

_COMMUNICATION = (
    _rule(
        Outcome.NCCL_ERROR,
        Weight.COMMUNICATION,
        "nccl error|ncclsystem|ncclinternal|ncclremote|ncclinvalid|ncclunhandled|unhandled system|unhandled cuda"
        "|communicator was aborted|rccl error|nccl warn|hccl error",
        r"\b[NRH]CCL error|nccl(?:System|Internal|Remote|Invalid\w*|UnhandledCuda)\w*(?:: |$)",
        r"unhandled (?:system|cuda) error|communicator was aborted",
        r"NCCL WARN (?:NET/IB : Got completion|.*\b(?:Connection (?:closed|reset|refused)|failed|error)\b)",
    ),
    _rule(
        Outcome.NCCL_ERROR,
        Weight.COMMUNICATION,
        "distbackenderror|distnetworkerror|diststoreerror|disterror|closed by peer|closed by remote peer"
        "|reset by peer|connectfullmesh|rendezvousconnection|rendezvousclosed|remote process exited|broken pipe",
        r"\bDist(?:Backend|Network|Store)?Error\b|remote process exited or there was a network error",
        r"Connection closed by (?:remote )?peer|Connection reset by peer|connectFullMesh failed",
        r"Rendezvous(?:Connection|Closed)Error|Broken pipe",
    ),
)

# Slurm's words first; PBS and LSF say theirs in one line each.
_ENDINGS = (
    _rule(
        Outcome.PREEMPTED,
        Weight.ENDING,
        "preempt",
        r"(?: ON (?P<host>[\w.-]+))? CANCELLED AT \S+ DUE TO (?P<why>PREEMPTION)",
        r"(?:slurmstepd|slurmctld|srun|salloc): .*\b(?P<why>preempted)\b",
        even_warnings=True,
    ),
    _rule(
        Outcome.TIME_LIMIT,
        Weight.ENDING,
        "time limit|timelimit|walltime|runlimit",
        r"(?: ON (?P<host>[\w.-]+))? CANCELLED AT \S+ DUE TO (?P<why>TIME LIMIT)",
        r"PBS: job killed: walltime|TERM_RUNLIMIT",
        even_warnings=True,
    ),
    _rule(
        Outcome.CANCELLED,
        Weight.ENDING,
        " cancelled at ",
        r"\*\*\* .*?(?: ON (?P<host>[\w.-]+))? CANCELLED AT \S+ DUE TO (?P<why>JOB REQUEUE)",
        r"\*\*\* .*?(?: ON (?P<host>[\w.-]+))? CANCELLED AT \S+ \*\*\*",
        r"\*\*\* .*? CANCELLED AT \S+ DUE to (?P<why>SIGNAL \w+)",
        even_warnings=True,
    ),
    _rule(
        Outcome.INTERRUPTED,
        Weight.ENDING,
        "keyboardinterrupt|death signal|got signal: |sending ctrl-c",
        r"(?:^|\s)KeyboardInterrupt(?:$|: )|srun: sending Ctrl-C",
        r"Received (?:Signals\.)?(?P<signal>\w+) death signal",
        r"SignalException: Process \d+ got signal: (?P<signal>\d+)",
        even_warnings=True,
    ),
)

_EXITS = (
    _rule(
        Outcome.KILLED,
        Weight.EXIT,
        "is killed by signal",
        r"DataLoader worker \(pid \d+\) is killed by signal: (?P<signal>[A-Z]\w+)",
    ),
    _rule(
        Outcome.ERROR,
        Weight.EXIT,
        "srun: error: |failed (non-zero",
        r"srun: error: (?P<host>[\w.-]+): tasks? (?P<task>\d+)[\d,-]*: "
        r"(?:Exited with exit code (?P<exit>\d+)|(?P<signal>Killed|Segmentation fault|Bus error|Aborted|Terminated))",
        r"\*\*\* \S+ \S+ ON (?P<host>[\w.-]+) FAILED \(non-zero exit code",
        even_warnings=True,
    ),
    # The watchdog ends its process by an abort too: these say that it ended, not why.
    _rule(
        Outcome.ERROR,
        Weight.EXIT,
        "aborted|what():",
        r"\bAborted \(core dumped\)|Fatal Python error: Aborted|^\s*what\(\):  \S",
    ),
)

_CRASHES = (
    _rule(
        Outcome.ERROR,
        Weight.CRASH,
        "segmentation fault|fatal python error|double free|segfault|assertion `|bus error",
        r"Fatal Python error: (?!Aborted)|(?:Segmentation fault|Bus error) \(core dumped\)|!!!+ Segfault",
        r"double free or corruption|Assertion `[^`']+['`] failed",
    ),
    _rule(
        Outcome.ERROR,
        Weight.CRASH,
        "cuda error: |hip error: |memory access fault",
        r"(?:CUDA|HIP) error: (?:an illegal (?:memory access|instruction)|unspecified launch failure|misaligned address"
        r"|device-side assert|the launch timed out|invalid (?:program counter|configuration|argument)|unknown error)",
        r"Memory access fault by GPU",
    ),
)

RULES: tuple[Rule, ...] = (
    *_OOM,
    *_HOST_OOM,
    *_NAN,
    *_NODE,
    *_DISK,
    *_CONFIG,
    *_TIMEOUT,
    *_COMMUNICATION,
    *_ENDINGS,
    *_CRASHES,
    *_EXITS,
)

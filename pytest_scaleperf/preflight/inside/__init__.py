"""What a pre-flight does inside its job: imports torch, triton and NVML, and is imported by nothing else of ours."""

"""Exact maps of any length on CUDA: kernels of our own, in Triton, for attention that is plain."""

from attnviz.streaming.gpu.fused import fused_lse
from attnviz.streaming.gpu.launch import (
    Parts,
    available,
    go_over,
    log_sum_exp_on_gpu,
    serves,
    summarise_on_gpu,
)

__all__ = [
    "Parts",
    "available",
    "fused_lse",
    "go_over",
    "log_sum_exp_on_gpu",
    "serves",
    "summarise_on_gpu",
]

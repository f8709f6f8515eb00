"""Triton's interpreter, mended for bfloat16 (import this module where TRITON_INTERPRET is 1)."""

from triton import language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

_create_dot = InterpreterBuilder.create_dot


def create_dot(self, a, b, d, *options):
    """Multiply the values of bfloat16 numbers; the interpreter multiplies their bits."""
    factors = (
        TensorHandle((each.data.astype("uint32") << 16).view("float32"), tl.float32)
        if each.dtype == tl.bfloat16
        else each
        for each in (a, b)
    )
    return _create_dot(self, *factors, d, *options)


InterpreterBuilder.create_dot = create_dot

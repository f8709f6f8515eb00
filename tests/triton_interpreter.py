"""Triton's interpreter, mended: bfloat16, and time (import this where TRITON_INTERPRET is 1)."""

from functools import cache

from triton import language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder, TensorHandle

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


def call(self, *args, **options):
    """Call a function from a kernel; the interpreter replaces Triton's language at each call."""
    _replace_language(self.fn)
    return self.rewrite()(*args, **options)


# At each launch the interpreter replaces what the kernel's module sees; this does for other ones.
_replace_language = cache(interpreter._patch_lang)
InterpretedFunction.__call__ = call

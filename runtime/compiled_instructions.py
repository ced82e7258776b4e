"""What a processor can do for a copy and Python cannot say: stores that pass the caches by, and prefetches.

A store that goes through a cache first reads the line that it is about to overwrite: three transfers of memory where two would
do. And short rows that lie apart wait for memory one after the other, since the processor cannot guess where the next one
lies. numba makes single instructions of these, whatever processor it runs on.
"""

from typing import Any, NamedTuple

LINE_BYTES = 64
"""A line of the caches, and the widest store there is. Only whole and aligned lines are stored past the caches."""

Emitted = Any
"""A type, value or builder of llvmlite, or something of numba's: neither ships types."""


class Instructions(NamedTuple):
    """Functions that compiled code may call. All addresses and widths are in bytes, as 64-bit integers."""

    stream_row: Any
    """``(target, source, width)``: copy past the caches. ``target`` and ``width`` are multiples of ``LINE_BYTES``."""
    prefetch_row: Any
    """``(address, width)``: begin to read whole lines of these bytes, which are used once. Any address will do."""
    drain: Any
    """``()``: let what was streamed be seen before anything that this thread stores from now on."""


def compile_instructions() -> Instructions:
    """Raises ``ImportError`` without numba."""
    from llvmlite import ir  # noqa: PLC0415 - comes with numba, an extra
    from numba.core import cgutils, types  # noqa: PLC0415 - an extra
    from numba.extending import intrinsic  # noqa: PLC0415 - an extra

    word, flag, byte_pointer = ir.IntType(64), ir.IntType(32), ir.IntType(8).as_pointer()
    line_pointer = ir.VectorType(word, LINE_BYTES // 8).as_pointer()

    def each_line(builder: Emitted, width: Emitted) -> Emitted:
        return cgutils.for_range(builder, builder.udiv(width, ir.Constant(word, LINE_BYTES)))

    def at(builder: Emitted, address: Emitted, index: Emitted, pointer: Emitted) -> Emitted:
        distance = builder.mul(index, ir.Constant(word, LINE_BYTES))
        return builder.inttoptr(builder.add(address, distance), pointer)

    def stream_row(_: Emitted, target: Emitted, source: Emitted, width: Emitted) -> Emitted:
        def emit(context: Emitted, builder: Emitted, _: Emitted, arguments: Emitted) -> Emitted:
            to, begin, width = arguments
            passing_by = builder.module.add_metadata([ir.Constant(flag, 1)])
            with each_line(builder, width) as loop:
                value = builder.load(at(builder, begin, loop.index, line_pointer), align=1)
                store = builder.store(value, at(builder, to, loop.index, line_pointer), align=LINE_BYTES)
                store.set_metadata("nontemporal", passing_by)
            return context.get_dummy_value()

        return types.void(target, source, width), emit

    def prefetch_row(_: Emitted, address: Emitted, width: Emitted) -> Emitted:
        def emit(context: Emitted, builder: Emitted, _: Emitted, arguments: Emitted) -> Emitted:
            begin, width = arguments
            kind = ir.FunctionType(ir.VoidType(), [byte_pointer, flag, flag, flag])
            prefetch = builder.module.declare_intrinsic("llvm.prefetch", (byte_pointer,), kind)
            for_reading, used_once, data = (ir.Constant(flag, number) for number in (0, 0, 1))
            with each_line(builder, width) as loop:
                builder.call(prefetch, [at(builder, begin, loop.index, byte_pointer), for_reading, used_once, data])
            return context.get_dummy_value()

        return types.void(address, width), emit

    def drain(_: Emitted) -> Emitted:
        def emit(context: Emitted, builder: Emitted, _: Emitted, arguments: Emitted) -> Emitted:  # noqa: ARG001 - numba's interface
            builder.fence("seq_cst")
            return context.get_dummy_value()

        return types.void(), emit

    return Instructions(intrinsic(stream_row), intrinsic(prefetch_row), intrinsic(drain))

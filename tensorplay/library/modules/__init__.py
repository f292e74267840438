"""Operators from compiled kernels: what declares them, and the Python that is made from it.

A cell and an operator module declare the same thing, an `OperatorSpec` (:mod:`.spec`). From it come
the readable Python of :mod:`.source` and the checks of :mod:`.rules`. :mod:`.artifact` holds the
description inside a library file, and :mod:`.loading` registers what a file describes. What reads
declarations and C++ needs a compiler and lives in the workbench, `tpkernel`.
"""

// Steps of compiled graphs that are no kernels, as functions of Python.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace tensorplay {

// multiply_matrices(fallback, a, b), transposed_product(fallback, a, b)
PyObject* multiply_matrices(PyObject* module, PyObject* const* args, Py_ssize_t count);
PyObject* transposed_product(PyObject* module, PyObject* const* args, Py_ssize_t count);

// sum_axis_0(fallback, x, size)
PyObject* sum_axis_0(PyObject* module, PyObject* const* args, Py_ssize_t count);

// pick_class(fallback, x, target, dim, ignore_index, function)
PyObject* pick_class(PyObject* module, PyObject* const* args, Py_ssize_t count);

// place_class(fallback, g, target, dim, ignore_index, classes)
PyObject* place_class(PyObject* module, PyObject* const* args, Py_ssize_t count);

bool prepare_steps();

}  // namespace tensorplay

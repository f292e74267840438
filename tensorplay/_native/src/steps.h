// Steps of compiled graphs that are no kernels, as functions of Python.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace tensorplay {

// multiply_matrices(fallback, a, b), multiply_turned(fallback, a, b)
PyObject* multiply_matrices(PyObject* module, PyObject* const* args, Py_ssize_t count);
PyObject* multiply_turned(PyObject* module, PyObject* const* args, Py_ssize_t count);

// sum_rows(fallback, x, size)
PyObject* sum_rows(PyObject* module, PyObject* const* args, Py_ssize_t count);

// pick_class(fallback, x, target, dim, ignore_index, function)
PyObject* pick_class(PyObject* module, PyObject* const* args, Py_ssize_t count);

// place_class(fallback, g, target, dim, ignore_index, classes)
PyObject* place_class(PyObject* module, PyObject* const* args, Py_ssize_t count);

bool prepare_steps();

}  // namespace tensorplay

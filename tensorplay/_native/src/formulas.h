// Formulas of neural networks on small arrays (formulas.cpp), as functions of the module.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace tensorplay {

PyObject* softmax(PyObject* module, PyObject* const* args, Py_ssize_t count);
PyObject* softmax_gradient(PyObject* module, PyObject* const* args, Py_ssize_t count);
PyObject* relu_gradient(PyObject* module, PyObject* const* args, Py_ssize_t count);
PyObject* nll_loss(PyObject* module, PyObject* const* args, Py_ssize_t count);
PyObject* nll_loss_gradient(PyObject* module, PyObject* const* args, Py_ssize_t count);
bool prepare_formulas();

}  // namespace tensorplay

// Gradient descent for small parameters (descent.cpp), as a function of the module.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace tensorplay {

PyObject* sgd_step(PyObject* module, PyObject* args);
bool prepare_descent();

}  // namespace tensorplay

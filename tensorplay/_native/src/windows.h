// Convolutions and pooling of contiguous arrays, without copies of what every window sees.
#pragma once

#include "native.h"

namespace tensorplay {

// windows.cpp: convolve(x, w, out, stride, padding, dilation, groups[, level]) and
// correlate(y, x, out, stride, padding, dilation, groups[, level]).
PyObject* convolve(PyObject* module, PyObject* args);
PyObject* correlate(PyObject* module, PyObject* args);
PyObject* tile_levels(PyObject* module, PyObject* none);
bool prepare_windows();

// pooling.cpp
PyObject* pool_largest(PyObject* module, PyObject* args);
PyObject* add_at_places(PyObject* module, PyObject* args);
bool prepare_pooling();

}  // namespace tensorplay

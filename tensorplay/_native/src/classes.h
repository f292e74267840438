// The targets of losses: a vector of classes. Included after `quick.h`.
#pragma once

#include "quick.h"

namespace tensorplay {

// Classes as int64, of which one is ignored and the others lie in range.
struct Classes {
  npy_intp count = 0;
  npy_intp counted = 0;  // of those that are not ignored
  npy_int64 ignored = 0;

  // False where NumPy's way has to judge; no error is set.
  bool read(PyObject* target, PyObject* ignore, npy_intp classes) {
    if (!PyArray_CheckExact(target) || PyArray_TYPE(as_array(target)) != NPY_INT64 ||
        PyArray_NDIM(as_array(target)) != 1 || !PyArray_ISBEHAVED_RO(as_array(target)) ||
        !PyLong_CheckExact(ignore)) {
      return false;
    }
    int overflow = 0;
    ignored = PyLong_AsLongLongAndOverflow(ignore, &overflow);
    if (overflow != 0) return false;
    first_ = PyArray_BYTES(as_array(target));
    step_ = PyArray_STRIDE(as_array(target), 0);
    count = PyArray_DIM(as_array(target), 0);
    for (npy_intp i = 0; i < count; ++i) {
      if (is_ignored(i)) continue;
      if (at(i) < 0 || at(i) >= classes) return false;
      ++counted;
    }
    return true;
  }

  npy_int64 at(npy_intp i) const {
    return *reinterpret_cast<const npy_int64*>(first_ + i * step_);
  }
  bool is_ignored(npy_intp i) const { return at(i) == ignored; }

 private:
  const char* first_ = nullptr;
  npy_intp step_ = 0;
};

}  // namespace tensorplay

// What the reverse pass does to the elements of gradients.
#pragma once

#include "ref.h"

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#ifndef TENSORPLAY_IMPORTS_NUMPY
#define NO_IMPORT_ARRAY
#define NO_IMPORT_UFUNC
#endif
#define PY_ARRAY_UNIQUE_SYMBOL tensorplay_gradients_array_api
#define PY_UFUNC_UNIQUE_SYMBOL tensorplay_gradients_ufunc_api
#include <numpy/arrayobject.h>
#include <numpy/ufuncobject.h>

#include "loops.h"

namespace tensorplay {

// Whether what a slot holds, which may be nothing, is an array of NumPy and of no subclass.
inline bool is_array(PyObject* object) { return object != nullptr && PyArray_CheckExact(object); }

// NumPy's state of warnings, which may be silenced while NumPy computes, and nowhere else: people's
// code sees it as they left it.
class Quiet {
 public:
  Quiet() = default;
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;
  ~Quiet();
  bool begin();  // false with an error set
  bool end();    // false with an error set

 private:
  Ref token_;
};

// NumPy's function on two arrays, as a new reference; `out`, if there is one, gets the result.
PyObject* add_arrays(PyObject* a, PyObject* b, PyObject* out, Quiet& quiet);

// The result of a function of NumPy as an array, whose reference it takes: numbers become arrays.
PyObject* as_new_array(PyObject* object);

// A derivative formula in arithmetic and functions of NumPy: Python's type `ArrayProgram`.
extern PyTypeObject* array_program_type;

// Run a formula. `args` are `count` arrays, numbers or others; the result is a new reference.
PyObject* run_program(PyObject* program, PyObject* gradient, PyObject* const* args,
                      Py_ssize_t count, PyObject* out, Quiet& quiet);

// configure_arrays(silence, restore)
PyObject* configure_arrays(PyObject* module, PyObject* args);
bool prepare_arrays(PyObject* module);

}  // namespace tensorplay

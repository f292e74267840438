// The short ways of small calls, compiled: what `tensorplay/ops/quick.py` does, which stays the reference
// and says why; here is how. A test runs both on every operator.
//
// A function that returns null has an error set, or else says that the call is none of the commonest
// (a miss): then the long way is taken, which also words the errors of arguments.
#pragma once

#include "layout.h"

#ifndef TENSORPLAY_IMPORTS_NUMPY  // one of the files that share these tables of functions imports them
#define NO_IMPORT_ARRAY
#define NO_IMPORT_UFUNC
#endif
#define PY_ARRAY_UNIQUE_SYMBOL tensorplay_array_api
#define PY_UFUNC_UNIQUE_SYMBOL tensorplay_ufunc_api
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>
#include <numpy/ufuncobject.h>

#include "loops.h"

namespace tensorplay {

// The two types that have short ways.
struct ElementType {
  PyObject* dtype = nullptr;  // the runtime's object
  PyArray_Descr* descr = nullptr;
  int number = NPY_NOTYPE;
};
extern ElementType element_types[2];

struct ShortWay;

// A view of an array by the other arguments, as a new array. Sets `*normal` to a new tuple if the
// arguments in their normal form are not those passed.
using ViewFunction = PyObject* (*)(PyArrayObject* array, PyObject* const* rest, PyObject** normal);

// What a declaration asks for beyond calls of its Python functions.
enum class Compiled { kNothing, kProduct, kSum, kMean, kScaled, kLinear, kRelu };

constexpr Py_ssize_t kMostTensors = 3;  // among the arguments of a short way

// A callable that Python makes by `short_way`, and that binds as a method does.
struct ShortWay {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* attributes;  // __dict__
  PyObject* primitive;
  PyObject* function;    // a ufunc, or the declaration's own
  PyObject* miss;        // called with the same arguments by a miss; null: a miss returns None
  PyObject* defaults;    // of the arguments after the tensors, a tuple
  PyObject* plain;       // what a node keeps of the arguments of which none is saved
  PyObject* converters;  // of the arguments after the tensors, a tuple
  PyObject* again;       // makes a view again, or computes with other than default arguments
  Loop loops[2];         // of `function`, by type
  ViewFunction view;
  Compiled compiled;
  unsigned char saves[1 << kMostTensors];  // kSavesX | …, by which operands need gradients
  unsigned char tensors;   // how many arguments are tensors
  unsigned char optional;  // which of them may be None, as bits
  unsigned char integers;  // which of them hold integers
  bool elementwise, differentiable, casts, shortened, swaps;
};

enum : unsigned char { kSavesFirst = 1, kSavesSecond = 2, kSavesResult = 1 << kMostTensors };

// --- quick_arrays.cpp: values ----------------------------------------------------------------

// One of two operands: a tensor's array, or a number.
struct Operand {
  PyObject* object = nullptr;      // borrowed
  PyArrayObject* array = nullptr;  // owned; null if it is a number
  bool tracked = false;            // whether it requires grad
  bool fits = false;               // whether `cell` holds the number
  union {
    npy_float single;
    npy_double twice;
  } cell;

  Operand() = default;
  Operand(const Operand&) = delete;
  Operand& operator=(const Operand&) = delete;
  ~Operand() { Py_XDECREF(array); }

  void read_number(int type);
};

// The loop of `add` where sums of few elements are no more than it; null if nobody knows, or an error.
const Loop* sum_loop(int type);
Loop find_loop(PyObject* function, int operands, int type);
PyObject* compute_one(const ShortWay* way, int type, PyArrayObject* x);
PyObject* compute_two(const ShortWay* way, int type, const Operand& x, const Operand& y);
// Write into the array of `x`; 1, 0 for a miss, -1 with an error set.
int compute_into(const ShortWay* way, int type, const Operand& x, const Operand& y);
// The same with `x + alpha * y`, by the loop of the way.
int compute_scaled_into(const ShortWay* way, int type, const Operand& x, const Operand& y,
                        PyObject* alpha);
// The product of two matrices; a miss as the others.
PyObject* compute_product(PyObject* x, PyObject* y);
// A product with the transpose of `weight`, and `bias` on each row, if that is not null; a miss where
// the declaration's own function is needed.
PyObject* compute_linear(int type, PyArrayObject* x, PyArrayObject* weight, PyArrayObject* bias);
// The sum, or mean, of all elements; a miss where NumPy's own function is needed.
PyObject* compute_sum(int type, PyArrayObject* x, bool mean);

// Call a function on one or two arguments, and ``out=``, without NumPy's warnings.
PyObject* call_quietly(PyObject* function, PyObject* a, PyObject* b = nullptr,
                       PyObject* out = nullptr);
// Turn what a Python function returned into an array; takes over the reference.
PyObject* array_from(PyObject* result);
// After an error: whether the long way knows better; then the error is cleared.
bool is_refusal();
bool prepare_quick_arrays();

// --- quick_views.cpp -------------------------------------------------------------------------

ViewFunction find_view(const char* name);  // null if there is none of that name

// --- quick_record.cpp: tensors and nodes -----------------------------------------------------

bool synchronise(PyObject* tensor);  // false with an error set
// Take a plain tensor of one of the types, or a number if `type` is known. Return the type, -1 for a
// miss or an error.
int read_tensor(PyObject* tensor, Operand& out);
// The same of a tensor that has the type, or of one that holds integers. False for a miss or an error.
bool read_beside(PyObject* tensor, int type, bool integers, Operand& out);
bool is_tracked(PyObject* tensor);
bool is_number(PyObject* object);

// Make a tensor of an array, which is taken over.
PyObject* finish(PyObject* array, int type);

// What a node keeps: new references, taken over by `record`, also on failure.
struct Kept {
  PyObject* sources = nullptr;
  PyObject* args = nullptr;
  PyObject* shapes = nullptr;
  PyObject* versions = nullptr;
  PyObject* out = nullptr;
};
PyObject* source_of(PyObject* tensor);
PyObject* shape_of(PyArrayObject* array);
PyObject* versions_of(PyObject* args, Py_ssize_t count);  // of the first so many
// Give the tensor `out` on `array` its node. False with an error set.
bool record(const ShortWay* way, PyObject* out, PyArrayObject* array, int type, Kept& kept);
// Return the counter of the memory, a new reference; null for a miss or an error.
PyObject* counter_of(PyObject* tensor);
// Note that `out` is a view of `x`, by the arguments `rest`. False with an error set.
bool mark_view(const ShortWay* way, PyObject* out, PyObject* x, PyObject* counter, PyObject* rest);
bool prepare_quick_records();

extern PyObject* python_quietly;   // `_quiet.quietly`
extern PyObject* python_versions;  // `quick._versions`

// --- quick.cpp: calls, by kind ----------------------------------------------------------------

inline ShortWay* way_of(PyObject* callable) { return reinterpret_cast<ShortWay*>(callable); }

// What a miss returns: the answer of the long way where there is one, else None.
PyObject* missed(const ShortWay* way, PyObject* const* args, size_t flags, PyObject* names);
// Calls with another number of arguments, or with names: the long way takes or refuses them.
PyObject* wrong_call(const ShortWay* way, PyObject* const* args, size_t flags, PyObject* names);
bool is_plain_call(size_t flags, PyObject* names, Py_ssize_t least, Py_ssize_t most);
// Whether a call on tensors that require grad is recorded: 1, 0, or -1 with an error set.
int wants_record(const ShortWay* way, bool tracked);
PyObject* tuple_of(PyObject* const* items, Py_ssize_t count);
// Whether the other arguments are the defaults, or left out: 1, 0, or -1 for a miss or an error.
int are_defaults(const ShortWay* way, PyObject* const* rest, Py_ssize_t count);
// The other arguments as the long way has them: what people pass may be changed later.
PyObject* converted(const ShortWay* way, PyObject* const* rest, Py_ssize_t count);

PyObject* call_two(PyObject* callable, PyObject* const* args, size_t flags, PyObject* names);
PyObject* call_arguments(PyObject* callable, PyObject* const* args, size_t flags, PyObject* names);
PyObject* call_view(PyObject* callable, PyObject* const* args, size_t flags, PyObject* names);
PyObject* call_write(PyObject* callable, PyObject* const* args, size_t flags, PyObject* names);
// quick_tensors.cpp
PyObject* call_tensors(PyObject* callable, PyObject* const* args, size_t flags, PyObject* names);

// Which operand of a record was a number: `node.FIRST_IS_NUMBER` and its like.
extern PyObject* first_is_number;
extern PyObject* second_is_number;
extern PyObject* name_astype;

}  // namespace tensorplay

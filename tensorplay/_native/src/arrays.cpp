// Derivative formulas on the elements of small arrays.
//
// A formula such as ``g * (1 - out * out)`` is a list of steps, each a function of NumPy. For small
// arrays a step calls NumPy's inner loop for the type, on memory that a step before it is done with;
// what the loop computes is the same as after NumPy's own preparations, which cost several times as
// much. Anything but contiguous arrays of one shape and 0-d ones goes to NumPy.
#define TENSORPLAY_IMPORTS_NUMPY
#include "arrays.h"

#include <new>
#include <vector>

#include "native.h"

namespace tensorplay {

PyTypeObject* array_program_type = nullptr;

namespace {

PyObject* silence = nullptr;
PyObject* restore = nullptr;

enum Kind : int { kGradient, kOut, kArgument, kConstant, kStep };

struct Operand {
  Kind kind;
  int index;
};

struct Step {
  PyObject* ufunc;
  int count;  // of operands
  Operand operands[2];
  bool last[2];   // whether nobody reads the operand afterwards
  Loop loops[2];  // for float32 and float64
};

struct Program {
  PyObject_HEAD
  std::vector<Step>* steps;
  PyObject* constants;  // a tuple of arrays
  Operand result;
};

Program* program_of(PyObject* object) { return reinterpret_cast<Program*>(object); }

// Which loop is for the elements of an array: 0 for float32, 1 for float64, -1 for none.
int number_of_loop(PyArrayObject* array) {
  const int type = PyArray_TYPE(array);
  return type == NPY_FLOAT ? 0 : type == NPY_DOUBLE ? 1 : -1;
}

// Tell whether the elements lie at equal distances, of `step` bytes, in the order of the indices.
bool is_even(PyArrayObject* array, npy_intp* step) {
  if (!PyArray_ISALIGNED(array) || !PyArray_ISNOTSWAPPED(array)) return false;
  const int ndim = PyArray_NDIM(array);
  if (ndim == 0) {
    *step = 0;
  } else if (ndim == 1) {
    *step = PyArray_STRIDE(array, 0);
  } else if (PyArray_IS_C_CONTIGUOUS(array)) {
    *step = PyArray_ITEMSIZE(array);
  } else {
    return false;
  }
  return true;
}

bool of_one_shape(PyArrayObject* a, PyArrayObject* b) {
  return PyArray_NDIM(a) == PyArray_NDIM(b) &&
         PyArray_CompareLists(PyArray_DIMS(a), PyArray_DIMS(b), PyArray_NDIM(a)) != 0;
}

// A number of Python beside an array, which takes the type of the array.
union Number {
  float narrow;
  double wide;
};

// Take a number that every type of floats has, but for rounding.
bool read_number(PyObject* object, double* out) {
  if (PyFloat_CheckExact(object)) {
    *out = PyFloat_AS_DOUBLE(object);
    return true;
  }
  if (!PyLong_CheckExact(object)) return false;
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
  constexpr long long kMost = 1ll << 53;
  if (overflow != 0 || value < -kMost || value > kMost) return false;
  *out = static_cast<double>(value);
  return true;
}

// Run a loop over operands, into one of them if `reused` says so. Null without an error: NumPy's own
// way is the one to take.
PyObject* run_loop(const Loop* loops, PyObject* const* operands, int count, int reused) {
  PyArrayObject* whole = nullptr;
  int number = -1;
  char* pointers[3];
  npy_intp steps[3];
  for (int i = 0; i < count; ++i) {
    if (!PyArray_CheckExact(operands[i])) continue;
    PyArrayObject* array = as_array(operands[i]);
    const int type = number_of_loop(array);
    if (type < 0 || (whole != nullptr && type != number) || !is_even(array, &steps[i])) {
      return nullptr;
    }
    number = type;
    pointers[i] = PyArray_BYTES(array);
    if (whole == nullptr || PyArray_NDIM(whole) == 0) {
      whole = array;
    } else if (PyArray_NDIM(array) != 0 && !of_one_shape(whole, array)) {
      return nullptr;
    }
  }
  if (whole == nullptr || loops[number].run == nullptr) return nullptr;
  Number numbers[2];
  for (int i = 0; i < count; ++i) {
    if (PyArray_CheckExact(operands[i])) continue;
    double value;
    if (!read_number(operands[i], &value)) return nullptr;
    if (number == 0) {
      numbers[i].narrow = static_cast<float>(value);
    } else {
      numbers[i].wide = value;
    }
    pointers[i] = reinterpret_cast<char*>(&numbers[i]);
    steps[i] = 0;
  }
  const npy_intp size = PyArray_SIZE(whole);
  if (size == 0 || size > kMostDirectElements) return nullptr;
  PyObject* result = nullptr;
  if (reused >= 0) {
    PyArrayObject* memory = as_array(operands[reused]);
    if (PyArray_NDIM(memory) == PyArray_NDIM(whole) && PyArray_ISCARRAY(memory)) {
      result = Py_NewRef(operands[reused]);
    }
  }
  if (result == nullptr) {
    PyArray_Descr* descr = PyArray_DESCR(whole);
    Py_INCREF(descr);
    result = PyArray_NewFromDescr(&PyArray_Type, descr, PyArray_NDIM(whole), PyArray_DIMS(whole),
                                  nullptr, nullptr, 0, nullptr);
    if (result == nullptr) return nullptr;
  }
  pointers[count] = PyArray_BYTES(as_array(result));
  steps[count] = PyArray_ITEMSIZE(as_array(result));
  loops[number].run(pointers, &size, steps, loops[number].data);
  return result;
}

// Whether arrays of one shape may share memory in another way than as the same elements.
bool may_overlap(PyArrayObject* a, PyArrayObject* b) {
  const char *low[2], *high[2];
  bool same = PyArray_BYTES(a) == PyArray_BYTES(b);
  int number = 0;
  for (PyArrayObject* x : {a, b}) {
    const char* start = PyArray_BYTES(x);
    const char* end = start + PyArray_ITEMSIZE(x);
    for (int d = 0; d < PyArray_NDIM(x); ++d) {
      const npy_intp reach = PyArray_STRIDE(x, d) * (PyArray_DIM(x, d) - 1);
      (reach < 0 ? start : end) += reach;
      same = same && (PyArray_DIM(a, d) == 1 || PyArray_STRIDE(a, d) == PyArray_STRIDE(b, d));
    }
    low[number] = start;
    high[number++] = end;
  }
  return !same && low[0] < high[1] && low[1] < high[0];
}

PyObject* run_step(const Step& step, PyObject* const* operands, int reused, Quiet& quiet) {
  PyObject* result = run_loop(step.loops, operands, step.count, reused);
  if (result != nullptr || PyErr_Occurred() || !quiet.begin()) return result;
  return as_new_array(
      PyObject_Vectorcall(step.ufunc, operands, static_cast<size_t>(step.count), nullptr));
}

// --- the type ----------------------------------------------------------------------------------

bool read_operand(PyObject* pair, Operand* out) {
  int kind = 0;
  if (!PyArg_ParseTuple(pair, "ii", &kind, &out->index)) return false;
  if (kind < kGradient || kind > kStep) {
    PyErr_SetString(PyExc_ValueError, "unknown kind of operand");
    return false;
  }
  out->kind = static_cast<Kind>(kind);
  return true;
}

bool read_step(PyObject* row, std::vector<Step>& steps) {
  PyObject *ufunc, *operands;
  if (!PyArg_ParseTuple(row, "O!O!", &PyUFunc_Type, &ufunc, &PyTuple_Type, &operands)) return false;
  Step step{};
  step.count = static_cast<int>(PyTuple_GET_SIZE(operands));
  if (step.count < 1 || step.count > 2 ||
      reinterpret_cast<PyUFuncObject*>(ufunc)->nin != step.count) {
    PyErr_SetString(PyExc_ValueError, "a step has one or two operands, as its function has");
    return false;
  }
  for (int i = 0; i < step.count; ++i) {
    if (!read_operand(PyTuple_GET_ITEM(operands, i), &step.operands[i])) return false;
  }
  step.loops[0] = loop_of(ufunc, NPY_FLOAT);
  step.loops[1] = loop_of(ufunc, NPY_DOUBLE);
  step.ufunc = Py_NewRef(ufunc);
  steps.push_back(step);
  return true;
}

// Find out which operands nobody reads afterwards; the result of the program is read at its end.
bool settle(Program* self) {
  std::vector<Step>& steps = *self->steps;
  std::vector<bool> read(steps.size(), false);
  const auto in_range = [&](Operand operand, size_t before) {
    const auto index = static_cast<size_t>(operand.index);
    return operand.index >= 0 &&
           (operand.kind != kStep || index < before) &&
           (operand.kind != kConstant ||
            index < static_cast<size_t>(PyTuple_GET_SIZE(self->constants)));
  };
  bool good = in_range(self->result, steps.size());
  if (good && self->result.kind == kStep) read[static_cast<size_t>(self->result.index)] = true;
  for (size_t n = steps.size(); good && n-- > 0;) {
    Step& step = steps[n];
    for (int i = step.count - 1; good && i >= 0; --i) {
      good = in_range(step.operands[i], n);
      if (!good || step.operands[i].kind != kStep) continue;
      const auto index = static_cast<size_t>(step.operands[i].index);
      step.last[i] = !read[index];
      read[index] = true;
    }
  }
  if (!good) PyErr_SetString(PyExc_ValueError, "an operand is not there");
  return good;
}

PyObject* make(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  PyObject *rows, *constants, *result;
  if (kwargs != nullptr && PyDict_GET_SIZE(kwargs) != 0) {
    PyErr_SetString(PyExc_TypeError, "ArrayProgram takes no keywords");
    return nullptr;
  }
  if (!PyArg_ParseTuple(args, "O!O!O!", &PyTuple_Type, &rows, &PyTuple_Type, &constants,
                        &PyTuple_Type, &result)) {
    return nullptr;
  }
  Ref made = Ref::take(type->tp_alloc(type, 0));
  if (!made) return nullptr;
  Program* self = program_of(made.get());
  self->steps = new (std::nothrow) std::vector<Step>;
  if (self->steps == nullptr) return PyErr_NoMemory();
  self->constants = Py_NewRef(constants);
  if (!read_operand(result, &self->result)) return nullptr;
  try {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rows); ++i) {
      if (!read_step(PyTuple_GET_ITEM(rows, i), *self->steps)) return nullptr;
    }
    return settle(self) ? made.give() : nullptr;
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

PyObject* call(PyObject* object, PyObject* args, PyObject*) {
  PyObject *gradient, *given, *shapes, *out;
  if (!PyArg_ParseTuple(args, "OOOO", &gradient, &given, &shapes, &out)) return nullptr;
  Ref values = Ref::take(PySequence_Tuple(given));  // which nobody changes meanwhile
  if (!values) return nullptr;
  Quiet quiet;
  PyObject* result = nullptr;
  try {
    result = run_program(object, gradient, &PyTuple_GET_ITEM(values.get(), 0),
                         PyTuple_GET_SIZE(values.get()), out, quiet);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
  if (result != nullptr && !quiet.end()) Py_CLEAR(result);
  return result;
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  Program* self = program_of(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(self->constants);
  if (self->steps != nullptr) {
    for (const Step& step : *self->steps) Py_VISIT(step.ufunc);
  }
  return 0;
}

int clear(PyObject* object) {
  Program* self = program_of(object);
  Py_CLEAR(self->constants);
  if (self->steps != nullptr) {
    std::vector<Step> steps;
    steps.swap(*self->steps);  // what dies last must not find the others half gone
    for (Step& step : steps) Py_DECREF(step.ufunc);
  }
  return 0;
}

void dealloc(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  clear(object);
  delete program_of(object)->steps;
  type->tp_free(object);
  Py_DECREF(type);
}

PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>(
                    "ArrayProgram(steps, constants, result): a formula on arrays.\n\n"
                    "Each of steps is (NumPy's function, operands); an operand is (kind, index).")},
    {Py_tp_new, reinterpret_cast<void*>(make)},
    {Py_tp_call, reinterpret_cast<void*>(call)},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {0, nullptr},
};

PyType_Spec spec = {
    "tensorplay._native._core.ArrayProgram",
    sizeof(Program),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    slots,
};

Step addition{};

}  // namespace

Quiet::~Quiet() {
  if (!token_) return;
  PyObject *kind, *error, *traceback;
  PyErr_Fetch(&kind, &error, &traceback);
  if (!end()) PyErr_WriteUnraisable(restore);
  PyErr_Restore(kind, error, traceback);
}

bool Quiet::begin() {
  if (token_) return true;
  token_ = Ref::take(PyObject_CallNoArgs(silence));
  return static_cast<bool>(token_);
}

bool Quiet::end() {
  if (!token_) return true;
  Ref token = std::move(token_);
  Ref done = Ref::take(PyObject_CallOneArg(restore, token.get()));
  return static_cast<bool>(done);
}

PyObject* as_new_array(PyObject* object) {
  if (object == nullptr || PyArray_CheckExact(object)) return object;
  PyObject* made = PyArray_FROM_O(object);
  Py_DECREF(object);
  return made;
}

PyObject* add_arrays(PyObject* a, PyObject* b, PyObject* out, Quiet& quiet) {
  PyObject* operands[3] = {a, b, out};
  // NumPy reads what it is about to write over from a copy.
  if (out == nullptr || (out == a && of_one_shape(as_array(a), as_array(b)) &&
                         !may_overlap(as_array(a), as_array(b)))) {
    PyObject* sum = run_loop(addition.loops, operands, 2, out == nullptr ? -1 : 0);
    // A result that is not in `out`, whose memory would not do, is copied by NumPy's own way.
    if (sum != nullptr && (out == nullptr || sum == out)) return sum;
    Py_XDECREF(sum);
    if (PyErr_Occurred()) return nullptr;
  }
  if (!quiet.begin()) return nullptr;
  return as_new_array(
      PyObject_Vectorcall(addition.ufunc, operands, out == nullptr ? 2 : 3, nullptr));
}

PyObject* run_program(PyObject* program, PyObject* gradient, PyObject* const* args,
                      Py_ssize_t count, PyObject* out, Quiet& quiet) {
  const Program* self = program_of(program);
  const std::vector<Step>& steps = *self->steps;
  constexpr size_t kFew = 16;
  Ref few[kFew];
  std::vector<Ref> many(steps.size() > kFew ? steps.size() : 0);
  Ref* temporaries = many.empty() ? few : many.data();
  const auto find = [&](Operand operand) -> PyObject* {
    switch (operand.kind) {
      case kGradient: return gradient;
      case kOut: return out;
      case kArgument: return operand.index < count ? args[operand.index] : nullptr;
      case kConstant: return PyTuple_GET_ITEM(self->constants, operand.index);
      case kStep: return temporaries[operand.index].get();
    }
    return nullptr;
  };
  for (size_t n = 0; n < steps.size(); ++n) {
    const Step& step = steps[n];
    PyObject* operands[2];
    int reused = -1;
    for (int i = 0; i < step.count; ++i) {
      operands[i] = find(step.operands[i]);
      if (operands[i] == nullptr) {
        PyErr_SetString(PyExc_IndexError, "a formula reads an argument that is not there");
        return nullptr;
      }
      // The memory of a step is free if nobody reads it later and nobody else holds it.
      if (step.last[i] && Py_REFCNT(operands[i]) == 1) reused = i;
    }
    Ref result = Ref::take(run_step(step, operands, reused, quiet));
    if (!result) return nullptr;
    for (int i = 0; i < step.count; ++i) {
      if (step.last[i]) temporaries[step.operands[i].index] = Ref();
    }
    temporaries[n] = std::move(result);
  }
  return Py_XNewRef(find(self->result));
}

PyObject* configure_arrays(PyObject*, PyObject* args) {
  PyObject *begin, *end, *add;
  if (!PyArg_ParseTuple(args, "OOO!", &begin, &end, &PyUFunc_Type, &add)) return nullptr;
  Py_XSETREF(silence, Py_NewRef(begin));
  Py_XSETREF(restore, Py_NewRef(end));
  addition.loops[0] = loop_of(add, NPY_FLOAT);
  addition.loops[1] = loop_of(add, NPY_DOUBLE);
  Py_XSETREF(addition.ufunc, Py_NewRef(add));
  Py_RETURN_NONE;
}

bool prepare_arrays(PyObject* module) {
  if (PyArray_ImportNumPyAPI() < 0 || PyUFunc_ImportUFuncAPI() < 0) return false;
  array_program_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return array_program_type != nullptr &&
         PyModule_AddObjectRef(module, "ArrayProgram",
                               reinterpret_cast<PyObject*>(array_program_type)) == 0;
}

}  // namespace tensorplay

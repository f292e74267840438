// Values of the short ways: NumPy's inner loops on memory made here, where the arguments are such that
// NumPy would do no more; NumPy's functions elsewhere.
#include "quick.h"

#include <cstring>
#include <initializer_list>

namespace tensorplay {

ElementType element_types[2];
PyObject* python_quietly = nullptr;
npy_intp most_of_a_small_sum = 0;

namespace {

constexpr long long kMostExact = 1LL << 53;  // integers up to here are doubles

PyObject* add = nullptr;         // np.add
PyObject* add_reduce = nullptr;  // np.add.reduce
PyObject* multiply = nullptr;    // np.multiply
PyObject* maximum = nullptr;     // np.maximum
PyObject* dot = nullptr;         // np.dot
PyObject* number_zero = nullptr;
PyObject* names_of_out = nullptr;  // ("out",)

npy_intp item_of(int type) { return PyDataType_ELSIZE(element_types[type].descr); }

PyObject* new_array(int type, int ndim, npy_intp const* shape, bool column_major = false) {
  PyArray_Descr* descr = element_types[type].descr;
  Py_INCREF(descr);  // the call takes it over
  return PyArray_NewFromDescr(&PyArray_Type, descr, ndim, shape, nullptr, nullptr,
                              column_major ? NPY_ARRAY_F_CONTIGUOUS : 0, nullptr);
}

char* data_of(PyObject* array) { return PyArray_BYTES(reinterpret_cast<PyArrayObject*>(array)); }

// Whether loops may run on the elements as they lie.
bool is_native(int type, PyArrayObject* array) {
  return PyArray_DESCR(array) == element_types[type].descr && PyArray_ISALIGNED(array);
}

// Operands that one run of a loop can take: of one shape, each in one run of memory, in the same order;
// or a single element each. NumPy itself takes no longer way for these.
class Run {
 public:
  explicit Run(int type) : type_(type) {}

  bool add(const Operand& operand) {
    if (operand.array == nullptr) {
      if (!operand.fits) return false;
      return put(const_cast<char*>(reinterpret_cast<const char*>(&operand.cell)), 0);
    }
    return add(operand.array);
  }

  bool add(PyArrayObject* array) {
    if (!is_native(type_, array)) return false;
    const int ndim = PyArray_NDIM(array);
    if (ndim == 0) return put(PyArray_BYTES(array), 0);
    if (first_ == nullptr) {
      first_ = array;
      count = PyArray_SIZE(array);
      if (count > kMostDirectElements) return false;
    } else if (ndim != PyArray_NDIM(first_) ||
               !PyArray_CompareLists(PyArray_DIMS(array), PyArray_DIMS(first_), ndim)) {
      return false;
    }
    if (ndim == 1) return put(PyArray_BYTES(array), PyArray_STRIDE(array, 0));
    order_ &= PyArray_FLAGS(array);
    return order_ != 0 && put(PyArray_BYTES(array), item_of(type_));
  }

  // Make the result, and run the loop into it.
  PyObject* into_new(const Loop& loop) {
    const int ndim = first_ == nullptr ? 0 : PyArray_NDIM(first_);
    PyObject* result = new_array(type_, ndim, first_ == nullptr ? nullptr : PyArray_DIMS(first_),
                                 ndim > 1 && order_ == NPY_ARRAY_F_CONTIGUOUS);
    if (result == nullptr) return nullptr;
    into(loop, data_of(result), item_of(type_));
    return result;
  }

  void into(const Loop& loop, char* out, npy_intp stride) {
    put(out, stride);
    if (count > 0) loop.run(data, &count, strides, loop.data);
  }

  char* data[3];
  npy_intp strides[3];
  npy_intp count = 1;

 private:
  bool put(char* where, npy_intp stride) {
    data[used_] = where;
    strides[used_++] = stride;
    return true;
  }

  int type_;
  int used_ = 0;
  int order_ = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_F_CONTIGUOUS;
  PyArrayObject* first_ = nullptr;  // that has dimensions
};

// The operand as NumPy's functions take it, a new reference. A number is an array where its value is
// known, which NumPy takes faster.
PyObject* as_argument(int type, const Operand& operand) {
  if (operand.array != nullptr) return Py_NewRef(reinterpret_cast<PyObject*>(operand.array));
  if (!operand.fits) return Py_NewRef(operand.object);
  PyObject* made = new_array(type, 0, nullptr);
  if (made != nullptr) std::memcpy(data_of(made), &operand.cell, static_cast<size_t>(item_of(type)));
  return made;
}

PyObject* call_numpy(PyObject* function, int type, const Operand& x, const Operand& y,
                     PyObject* out) {
  PyObject* left = as_argument(type, x);
  PyObject* right = left == nullptr ? nullptr : as_argument(type, y);
  PyObject* result =
      right == nullptr ? nullptr : call_quietly(function, left, right, out);
  Py_XDECREF(left);
  Py_XDECREF(right);
  return result;
}

// Whether a write to `target` cannot change `value` before it is read: they are the same elements in
// the same order, or lie apart.
bool may_be_written(PyArrayObject* target, const Operand& value, npy_intp count) {
  if (value.array == nullptr) return true;
  const char* first = PyArray_BYTES(target);
  const char* last = first + count * PyArray_ITEMSIZE(target);
  const char* low = PyArray_BYTES(value.array);
  if (low == first && PyArray_NDIM(value.array) == PyArray_NDIM(target) &&
      PyArray_ISCARRAY_RO(value.array)) {
    return true;  // of one shape, as the run has found
  }
  const char* high = low;
  for (int i = 0; i < PyArray_NDIM(value.array); ++i) {
    const npy_intp size = PyArray_DIM(value.array, i);
    if (size == 0) return true;
    const npy_intp reach = (size - 1) * PyArray_STRIDE(value.array, i);
    (reach < 0 ? low : high) += reach;
  }
  return high + PyArray_ITEMSIZE(value.array) <= first || last <= low;
}

// NumPy adds in pairs of halves inside of the loop of `add`, starting from zero. Whether that is all it
// does is found out once for each type, by sums that come out otherwise in any other order.
Loop sums[2];
bool sums_are_known[2];

void run_sum(const Loop& loop, char* in, npy_intp count, npy_intp stride, char* out) {
  char* data[3] = {out, in, out};
  npy_intp strides[3] = {0, stride, 0};
  if (count > 0) loop.run(data, &count, strides, loop.data);
}

// 1, 0, or -1 if nobody can say now.
template <typename T>
int sums_agree(int type, const Loop& loop) {
  constexpr npy_intp shapes[][2] = {{1, 1}, {1, 7}, {1, 9}, {13, 10}, {1, 1000}, {8, 125}};
  for (const auto& shape : shapes) {
    const npy_intp count = shape[0] * shape[1];
    PyObject* array = new_array(type, 2, shape);
    if (array == nullptr) return -1;
    T* elements = reinterpret_cast<T*>(data_of(array));
    fill_for_sums(elements, count);
    if (count == 1) elements[0] = static_cast<T>(-0.0);
    PyObject* theirs = array_from(call_quietly(add_reduce, array, Py_None));
    T ours = 0;
    run_sum(loop, data_of(array), count, static_cast<npy_intp>(sizeof(T)),
            reinterpret_cast<char*>(&ours));
    Py_DECREF(array);
    if (theirs == nullptr) return -1;
    const bool same = std::memcmp(&ours, data_of(theirs), sizeof(T)) == 0;
    Py_DECREF(theirs);
    if (!same) return 0;
  }
  return 1;
}

}  // namespace

const Loop* sum_loop(int type) {
  if (!sums_are_known[type]) {
    const Loop loop = find_loop(add, 2, type);
    int agree = 0;
    if (loop.run != nullptr) {
      agree = type == 0 ? sums_agree<npy_float>(type, loop) : sums_agree<npy_double>(type, loop);
    }
    if (agree < 0) return nullptr;
    if (agree == 1) sums[type] = loop;
    sums_are_known[type] = true;
  }
  return sums[type].run == nullptr ? nullptr : &sums[type];
}

bool is_refusal() {
  // What NumPy's functions raise at arguments that the long way refuses with better words, or knows how
  // to take; RuntimeError is `quietly` in use by another thread.
  for (PyObject* kind : {PyExc_TypeError, PyExc_ValueError, PyExc_IndexError, PyExc_OverflowError,
                         PyExc_RuntimeError}) {
    if (PyErr_ExceptionMatches(kind)) {
      PyErr_Clear();
      return true;
    }
  }
  return false;
}

PyObject* call_quietly(PyObject* function, PyObject* a, PyObject* b, PyObject* out) {
  PyObject* args[] = {nullptr, function, a, b, out};  // the first is room for the callee
  if (b == nullptr) args[3] = out;
  const size_t count = b == nullptr ? 2 : 3;
  PyObject* result =
      PyObject_Vectorcall(python_quietly, args + 1, count | PY_VECTORCALL_ARGUMENTS_OFFSET,
                          out == nullptr ? nullptr : names_of_out);
  if (result == nullptr) is_refusal();
  return result;
}

PyObject* array_from(PyObject* result) {
  if (result == nullptr || PyArray_CheckExact(result)) return result;
  PyObject* array = nullptr;
  if (result != Py_None) {  // else a miss
    array = PyArray_FromAny(result, nullptr, 0, 0, NPY_ARRAY_ENSURECOPY | NPY_ARRAY_ENSUREARRAY,
                            nullptr);
  }
  Py_DECREF(result);
  return array;
}

void Operand::read_number(int type) {
  double value = 0;
  if (PyFloat_CheckExact(object)) {
    value = PyFloat_AS_DOUBLE(object);
  } else {
    int overflow = 0;
    const long long whole = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (overflow != 0 || whole > kMostExact || whole < -kMostExact) return;  // NumPy's to judge
    value = static_cast<double>(whole);
  }
  fits = true;
  if (type == 0) {
    cell.single = static_cast<npy_float>(value);
  } else {
    cell.twice = value;
  }
}

Loop find_loop(PyObject* function, int operands, int type) {
  if (!PyObject_TypeCheck(function, &PyUFunc_Type)) return {};
  auto* ufunc = reinterpret_cast<PyUFuncObject*>(function);
  if (ufunc->nin != operands || ufunc->nout != 1 || ufunc->core_enabled) return {};
  return loop_of(function, element_types[type].number);
}

PyObject* compute_one(const ShortWay* way, int type, PyArrayObject* x) {
  const Loop& loop = way->loops[type];
  if (way->compiled == Compiled::kRelu) {
    const Loop most = find_loop(maximum, 2, type);
    Operand zero;
    zero.object = number_zero;
    zero.read_number(type);
    Run run(type);
    if (most.run != nullptr && run.add(x) && run.add(zero)) return run.into_new(most);
  }
  if (loop.run != nullptr) {
    Run run(type);
    if (run.add(x)) return run.into_new(loop);
  }
  return array_from(call_quietly(way->function, reinterpret_cast<PyObject*>(x)));
}

PyObject* compute_two(const ShortWay* way, int type, const Operand& x, const Operand& y) {
  const Loop& loop = way->loops[type];
  if (loop.run != nullptr) {
    Run run(type);
    if (run.add(x) && run.add(y)) return run.into_new(loop);
  }
  return array_from(call_numpy(way->function, type, x, y, nullptr));
}

int compute_into(const ShortWay* way, int type, const Operand& x, const Operand& y) {
  const Loop& loop = way->loops[type];
  if (loop.run != nullptr) {
    Run run(type);
    // An operand with more dimensions than the target, which NumPy refuses, differs in their number.
    if (run.add(x) && run.add(y) && (PyArray_NDIM(x.array) > 0 || y.array == nullptr ||
                                     PyArray_NDIM(y.array) == 0) &&
        may_be_written(x.array, y, run.count)) {
      run.into(loop, PyArray_BYTES(x.array),
               PyArray_NDIM(x.array) == 1 ? PyArray_STRIDE(x.array, 0) : item_of(type));
      return 1;
    }
  }
  PyObject* done = call_numpy(way->function, type, x, y, reinterpret_cast<PyObject*>(x.array));
  if (done == nullptr) return PyErr_Occurred() ? -1 : 0;
  Py_DECREF(done);
  return 1;
}

int compute_scaled_into(const ShortWay* way, int type, const Operand& x, const Operand& y,
                        PyObject* alpha) {
  const Loop& loop = way->loops[type];
  Operand factor;
  factor.object = alpha;
  factor.read_number(type);
  if (loop.run == nullptr || y.array == nullptr || !factor.fits) return 0;
  const Loop times = find_loop(multiply, 2, type);
  if (times.run == nullptr) return 0;
  Run scaling(type);
  if (!scaling.add(y) || !scaling.add(factor)) return 0;
  Operand scaled;
  scaled.array = reinterpret_cast<PyArrayObject*>(scaling.into_new(times));
  if (scaled.array == nullptr) return -1;
  Run run(type);
  if (!run.add(x) || !run.add(scaled) ||
      (PyArray_NDIM(x.array) == 0 && PyArray_NDIM(scaled.array) != 0)) {
    return 0;
  }
  run.into(loop, PyArray_BYTES(x.array),
           PyArray_NDIM(x.array) == 1 ? PyArray_STRIDE(x.array, 0) : item_of(type));
  return 1;
}

PyObject* compute_product(PyObject* x, PyObject* y) {
  return array_from(call_quietly(dot, x, y));
}

PyObject* compute_linear(int type, PyArrayObject* x, PyArrayObject* weight, PyArrayObject* bias) {
  if (PyArray_NDIM(x) != 2 || PyArray_NDIM(weight) != 2) return nullptr;
  const npy_intp rows = PyArray_DIM(x, 0), columns = PyArray_DIM(weight, 0);
  const int number = element_types[type].number;
  if (PyArray_TYPE(x) != number || PyArray_TYPE(weight) != number) return nullptr;
  // Sizes of empty arrays may have any product, hence the order, and the division.
  if (PyArray_DIM(x, 1) != PyArray_DIM(weight, 1) || PyArray_SIZE(weight) == 0 ||
      rows > kMostDirectElements / columns) {
    return nullptr;
  }
  Loop adding;
  if (bias != nullptr) {
    if (PyArray_NDIM(bias) != 1 || PyArray_DIM(bias, 0) != columns || !is_native(type, bias)) {
      return nullptr;
    }
    adding = find_loop(add, 2, type);
    if (adding.run == nullptr) return nullptr;
  }
  PyObject* turned = PyArray_Transpose(weight, nullptr);
  if (turned == nullptr) return nullptr;
  PyObject* result = compute_product(reinterpret_cast<PyObject*>(x), turned);
  Py_DECREF(turned);
  if (result == nullptr || bias == nullptr) return result;
  const npy_intp item = item_of(type);
  char* row = data_of(result);
  for (npy_intp i = 0; i < rows; ++i, row += columns * item) {
    char* data[3] = {row, PyArray_BYTES(bias), row};
    const npy_intp strides[3] = {item, PyArray_STRIDE(bias, 0), item};
    adding.run(data, &columns, strides, adding.data);
  }
  return result;
}

PyObject* compute_sum(int type, PyArrayObject* x, bool mean) {
  const int ndim = PyArray_NDIM(x);
  const bool together = ndim == 1 || PyArray_ISCONTIGUOUS(x);
  const npy_intp count = PyArray_SIZE(x);
  if (!together || !is_native(type, x) || count > most_of_a_small_sum || count == 0) return nullptr;
  const Loop* loop = sum_loop(type);
  if (loop == nullptr) return nullptr;
  PyObject* result = new_array(type, 0, nullptr);
  if (result == nullptr) return nullptr;
  std::memset(data_of(result), 0, static_cast<size_t>(item_of(type)));
  run_sum(*loop, PyArray_BYTES(x), count, ndim == 1 ? PyArray_STRIDE(x, 0) : item_of(type),
          data_of(result));
  if (mean && type == 0) {
    *reinterpret_cast<npy_float*>(data_of(result)) /= static_cast<npy_float>(count);
  } else if (mean) {
    *reinterpret_cast<npy_double*>(data_of(result)) /= static_cast<npy_double>(count);
  }
  return result;
}

bool prepare_quick_arrays() {
  PyObject* numpy = PyImport_ImportModule("numpy");
  if (numpy == nullptr) return false;
  add = PyObject_GetAttrString(numpy, "add");
  multiply = PyObject_GetAttrString(numpy, "multiply");
  maximum = PyObject_GetAttrString(numpy, "maximum");
  dot = PyObject_GetAttrString(numpy, "dot");
  number_zero = PyLong_FromLong(0);
  Py_DECREF(numpy);
  if (add != nullptr) add_reduce = PyObject_GetAttrString(add, "reduce");
  PyObject* name = PyUnicode_InternFromString("out");
  names_of_out = name == nullptr ? nullptr : PyTuple_Pack(1, name);
  Py_XDECREF(name);
  return add_reduce != nullptr && multiply != nullptr && maximum != nullptr &&
         dot != nullptr && number_zero != nullptr && names_of_out != nullptr;
}

}  // namespace tensorplay

// Formulas of neural networks on small arrays, a row at a time: what `tensorplay/ops` computes by
// NumPy's functions, by their inner loops. Each function returns None where NumPy has to compute.
#include "formulas.h"

#include <cstring>
#include <initializer_list>
#include <utility>

#include "classes.h"
#include "ref.h"

namespace tensorplay {
namespace {

// NumPy's functions, of which the loops are found when they are needed.
struct Functions {
  PyObject *maximum, *subtract, *multiply, *divide, *exp, *log;
} functions{};

// The type of an array of one of the two types that lies in one run of memory and is not too large,
// -1 of others.
int type_of_run(PyObject* object, npy_intp most = kMostDirectElements) {
  if (!PyArray_CheckExact(object)) return -1;
  auto* array = reinterpret_cast<PyArrayObject*>(object);
  if (!PyArray_ISCARRAY_RO(array) || PyArray_SIZE(array) > most) return -1;
  for (int type = 0; type < 2; ++type) {
    if (PyArray_DESCR(array) == element_types[type].descr) return type;
  }
  return -1;
}

bool of_one_shape(PyArrayObject* a, PyArrayObject* b) {
  return PyArray_NDIM(a) == PyArray_NDIM(b) &&
         PyArray_CompareLists(PyArray_DIMS(a), PyArray_DIMS(b), PyArray_NDIM(a));
}

PyObject* array_like(PyArrayObject* x) {
  PyArray_Descr* descr = PyArray_DESCR(x);
  Py_INCREF(descr);
  return PyArray_NewFromDescr(&PyArray_Type, descr, PyArray_NDIM(x), PyArray_DIMS(x), nullptr,
                              nullptr, 0, nullptr);
}

void run(const Loop& loop, char* x, npy_intp x_step, char* y, npy_intp y_step, char* out,
         npy_intp out_step, npy_intp count) {
  char* data[3] = {x, y, out};
  const npy_intp strides[3] = {x_step, y_step, out_step};
  if (count > 0) loop.run(data, &count, strides, loop.data);
}

void run(const Loop& loop, char* x, char* out, npy_intp step, npy_intp count) {
  char* data[2] = {x, out};
  const npy_intp strides[2] = {step, step};
  if (count > 0) loop.run(data, &count, strides, loop.data);
}

// Rows along the last dimension of an array in one run of memory.
struct Rows {
  explicit Rows(PyArrayObject* x)
      : columns(PyArray_DIM(x, PyArray_NDIM(x) - 1)), count(PyArray_SIZE(x) / columns),
        item(PyArray_ITEMSIZE(x)) {}
  npy_intp columns, count, item;
};

union Cell {
  npy_float single;
  npy_double twice;
};

bool find(std::initializer_list<std::pair<Loop*, PyObject*>> wanted, int type) {
  for (const auto& [loop, function] : wanted) {
    const int operands = function == functions.exp || function == functions.log ? 1 : 2;
    *loop = find_loop(function, operands, type);
    if (loop->run == nullptr) return false;
  }
  return true;
}

bool has_rows(PyObject* x) {
  return PyArray_NDIM(as_array(x)) > 0 && PyArray_SIZE(as_array(x)) > 0;
}

PyObject* nothing() {
  if (PyErr_Occurred()) return nullptr;
  Py_RETURN_NONE;
}

}  // namespace

PyObject* softmax(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 2) return PyErr_Format(PyExc_TypeError, "softmax(x, logarithm)");
  const int type = type_of_run(args[0]);
  Loop most, subtract, divide, exp, log;
  if (type < 0 || !has_rows(args[0]) ||
      !find({{&most, functions.maximum}, {&subtract, functions.subtract},
             {&divide, functions.divide}, {&exp, functions.exp}, {&log, functions.log}}, type)) {
    Py_RETURN_NONE;
  }
  const bool logarithm = args[1] == Py_True;
  const Loop* sum = sum_loop(type);
  if (sum == nullptr) return nothing();
  const Rows rows(as_array(args[0]));
  Ref result = Ref::take(array_like(as_array(args[0])));
  Ref powers = !result || !logarithm ? Ref() : Ref::take(array_like(as_array(args[0])));
  if (!result || (logarithm && !powers)) return nullptr;
  char* x = PyArray_BYTES(as_array(args[0]));
  char* out = PyArray_BYTES(as_array(result.get()));
  char* e = logarithm ? PyArray_BYTES(as_array(powers.get())) : out;
  const npy_intp item = rows.item, length = rows.columns * item;
  for (npy_intp i = 0; i < rows.count; ++i) {
    Cell cell;
    char* one = reinterpret_cast<char*>(&cell);
    std::memcpy(one, x + i * length, static_cast<size_t>(item));
    run(most, one, 0, x + i * length + item, item, one, 0, rows.columns - 1);
    run(subtract, x + i * length, item, one, 0, out + i * length, item, rows.columns);
  }
  run(exp, out, e, item, rows.count * rows.columns);
  for (npy_intp i = 0; i < rows.count; ++i) {
    Cell cell{};
    char* one = reinterpret_cast<char*>(&cell);
    run(*sum, one, 0, e + i * length, item, one, 0, rows.columns);
    char* row = out + i * length;
    if (logarithm) run(log, one, one, item, 1);
    run(logarithm ? subtract : divide, row, item, one, 0, row, item, rows.columns);
  }
  return result.give();
}

PyObject* softmax_gradient(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 3) return PyErr_Format(PyExc_TypeError, "softmax_gradient(g, out, logarithm)");
  const int type = type_of_run(args[0]);
  Loop subtract, multiply, exp;
  if (type < 0 || type_of_run(args[1]) != type || !has_rows(args[1]) ||
      !of_one_shape(as_array(args[0]), as_array(args[1])) ||
      !find({{&subtract, functions.subtract}, {&multiply, functions.multiply},
             {&exp, functions.exp}}, type)) {
    Py_RETURN_NONE;
  }
  const bool logarithm = args[2] == Py_True;
  const Loop* sum = sum_loop(type);
  if (sum == nullptr) return nothing();
  const Rows rows(as_array(args[1]));
  Ref result = Ref::take(array_like(as_array(args[1])));
  Ref scratch = !result ? Ref() : Ref::take(array_like(as_array(args[1])));
  if (!scratch) return nullptr;
  char* g = PyArray_BYTES(as_array(args[0]));
  char* p = PyArray_BYTES(as_array(args[1]));
  char* out = PyArray_BYTES(as_array(result.get()));
  char* spare = PyArray_BYTES(as_array(scratch.get()));
  const npy_intp item = rows.item, length = rows.columns * item;
  const npy_intp all = rows.count * rows.columns;
  if (logarithm) {  // g - exp(out) * sum(g)
    run(exp, p, spare, item, all);
    p = spare;
  } else {  // g * out - out * sum(g * out)
    run(multiply, g, item, p, item, out, item, all);
    g = out;
  }
  for (npy_intp i = 0; i < rows.count; ++i) {
    Cell cell{};
    char* one = reinterpret_cast<char*>(&cell);
    run(*sum, one, 0, g + i * length, item, one, 0, rows.columns);
    run(multiply, p + i * length, item, one, 0, spare + i * length, item, rows.columns);
  }
  run(subtract, g, item, spare, item, out, item, all);
  return result.give();
}

namespace {

template <typename T>
void keep_where_positive(const T* g, const T* y, T* out, npy_intp count) {
  for (npy_intp i = 0; i < count; ++i) {
    const T value = g[i];  // read in any case, so that the compiler sees no branch
    out[i] = y[i] <= 0 ? T(0) : value;
  }
}

}  // namespace

PyObject* relu_gradient(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 2) return PyErr_Format(PyExc_TypeError, "relu_gradient(g, out)");
  // Of any size: NumPy's choice takes a branch per element.
  const int type = type_of_run(args[0], NPY_MAX_INTP);
  if (type < 0 || type_of_run(args[1], NPY_MAX_INTP) != type ||
      !of_one_shape(as_array(args[0]), as_array(args[1]))) {
    Py_RETURN_NONE;
  }
  PyObject* result = array_like(as_array(args[0]));
  if (result == nullptr) return nullptr;
  const npy_intp size = PyArray_SIZE(as_array(args[0]));
  void *g = PyArray_DATA(as_array(args[0])), *y = PyArray_DATA(as_array(args[1]));
  void* out = PyArray_DATA(as_array(result));
  PyThreadState* thread = size > kMostDirectElements ? PyEval_SaveThread() : nullptr;
  if (type == 0) {
    keep_where_positive(static_cast<npy_float*>(g), static_cast<npy_float*>(y),
                        static_cast<npy_float*>(out), size);
  } else {
    keep_where_positive(static_cast<npy_double*>(g), static_cast<npy_double*>(y),
                        static_cast<npy_double*>(out), size);
  }
  if (thread != nullptr) PyEval_RestoreThread(thread);
  return result;
}

namespace {

template <typename T>
PyObject* mean_of(const T* x, npy_intp columns, const Classes& classes, int type, const Loop& sum) {
  Ref losses = Ref::take(PyArray_SimpleNew(1, &classes.count, element_types[type].number));
  Ref result = Ref::take(PyArray_SimpleNew(0, nullptr, element_types[type].number));
  if (!losses || !result) return nullptr;
  T* loss = static_cast<T*>(PyArray_DATA(as_array(losses.get())));
  for (npy_intp i = 0; i < classes.count; ++i) {
    loss[i] = classes.is_ignored(i) ? T(0) : x[i * columns + classes.at(i)];
    loss[i] = -loss[i];
  }
  T total = 0;
  char* one = reinterpret_cast<char*>(&total);
  run(sum, one, 0, reinterpret_cast<char*>(loss), sizeof(T), one, 0, classes.count);
  *static_cast<T*>(PyArray_DATA(as_array(result.get()))) = total / static_cast<T>(classes.counted);
  return result.give();
}

template <typename T>
PyObject* placed(T g, npy_intp columns, const Classes& classes, int type) {
  const npy_intp shape[2] = {classes.count, columns};
  PyObject* result = PyArray_ZEROS(2, shape, element_types[type].number, 0);
  if (result == nullptr) return nullptr;
  T* out = static_cast<T*>(PyArray_DATA(as_array(result)));
  const T share = -(g / static_cast<T>(classes.counted));
  for (npy_intp i = 0; i < classes.count; ++i) {
    if (!classes.is_ignored(i)) out[i * columns + classes.at(i)] = share;
  }
  return result;
}

}  // namespace

PyObject* nll_loss(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 3) return PyErr_Format(PyExc_TypeError, "nll_loss(x, target, ignore_index)");
  const int type = type_of_run(args[0]);
  if (type < 0 || PyArray_NDIM(as_array(args[0])) != 2) Py_RETURN_NONE;
  const npy_intp columns = PyArray_DIM(as_array(args[0]), 1);
  Classes classes;
  if (!classes.read(args[1], args[2], columns) || classes.count > most_of_a_small_sum ||
      classes.count != PyArray_DIM(as_array(args[0]), 0)) {
    return nothing();
  }
  const Loop* sum = sum_loop(type);
  if (sum == nullptr) return nothing();
  void* x = PyArray_DATA(as_array(args[0]));
  return type == 0 ? mean_of(static_cast<npy_float*>(x), columns, classes, type, *sum)
                   : mean_of(static_cast<npy_double*>(x), columns, classes, type, *sum);
}

PyObject* nll_loss_gradient(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 4 || !PyLong_Check(args[3])) {
    return PyErr_Format(PyExc_TypeError,
                        "nll_loss_gradient(g, target, ignore_index, classes)");
  }
  const int type = type_of_run(args[0]);
  const Py_ssize_t columns = PyLong_AsSsize_t(args[3]);
  if (columns == -1 && PyErr_Occurred()) return nullptr;
  Classes classes;
  if (type < 0 || PyArray_NDIM(as_array(args[0])) != 0 ||
      !classes.read(args[1], args[2], columns)) {
    return nothing();
  }
  void* g = PyArray_DATA(as_array(args[0]));
  return type == 0 ? placed(*static_cast<npy_float*>(g), columns, classes, type)
                   : placed(*static_cast<npy_double*>(g), columns, classes, type);
}

bool prepare_formulas() {
  Ref numpy = Ref::take(PyImport_ImportModule("numpy"));
  if (!numpy) return false;
  const std::pair<PyObject**, const char*> wanted[] = {
      {&functions.maximum, "maximum"},   {&functions.subtract, "subtract"},
      {&functions.multiply, "multiply"}, {&functions.divide, "true_divide"},
      {&functions.exp, "exp"},           {&functions.log, "log"},
  };
  for (const auto& [place, name] : wanted) {  // which live as long as the process
    *place = PyObject_GetAttrString(numpy.get(), name);
    if (*place == nullptr) return false;
  }
  return true;
}

}  // namespace tensorplay

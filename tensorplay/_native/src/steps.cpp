// Steps of compiled graphs that are no kernels: what `compiler/cpp/array_calls.py` calls on arrays.
//
// Each function takes NumPy's way first, which is the reference, and calls it for all arrays but plain
// ones. What comes back has the same bits.
#include "steps.h"

#include <algorithm>
#include <cstring>

#include "arrays.h"

namespace tensorplay {

namespace {

constexpr npy_intp kWithInterpreter = 1 << 16;  // multiplications below which keeping it is cheaper
constexpr npy_intp kRowsAddedInTheirType = 1024;  // more of them NumPy's way adds up in a wider type

// NumPy's own product of matrices of one type.
struct Loop {
  PyUFuncGenericFunction function = nullptr;
  void* data = nullptr;
};

Loop float_product, double_product;

Loop loop_of(PyObject* ufunc, char type) {
  auto* u = reinterpret_cast<PyUFuncObject*>(ufunc);
  for (int i = 0; i < u->ntypes; ++i) {
    const char* types = u->types + i * u->nargs;
    if (types[0] == type && types[1] == type && types[2] == type) {
      return {u->functions[i], u->data == nullptr ? nullptr : u->data[i]};
    }
  }
  return {};
}

bool is_plain_array(PyObject* object, int dims) {
  return is_array(object) && PyArray_NDIM(as_array(object)) == dims &&
         PyArray_ISBEHAVED_RO(as_array(object));
}

bool is_float(PyObject* object) {
  const int type = PyArray_TYPE(as_array(object));
  return type == NPY_FLOAT || type == NPY_DOUBLE;
}

PyObject* fall_back(PyObject* const* args, Py_ssize_t count) {
  return PyObject_Vectorcall(args[0], args + 1, static_cast<size_t>(count), nullptr);
}

bool too_few(Py_ssize_t given, Py_ssize_t expected) {
  if (given == expected) return false;
  PyErr_Format(PyExc_TypeError, "expected %zd arguments, got %zd", expected, given);
  return true;
}

// The product of two matrices; `turned`: its transpose, in memory of its own.
PyObject* multiply(PyObject* const* args, bool turned) {
  Loop loop;
  if (is_plain_array(args[1], 2) && is_plain_array(args[2], 2)) {
    const int type = PyArray_TYPE(as_array(args[1]));
    if (type == PyArray_TYPE(as_array(args[2]))) {
      if (type == NPY_FLOAT) loop = float_product;
      if (type == NPY_DOUBLE) loop = double_product;
    }
  }
  PyArrayObject *a = nullptr, *b = nullptr;
  npy_intp rows = 0, depth = 0, columns = 0;
  if (loop.function != nullptr) {
    a = as_array(args[1]);
    b = as_array(args[2]);
    rows = PyArray_DIM(a, 0);
    depth = PyArray_DIM(a, 1);
    columns = PyArray_DIM(b, 1);
  }
  if (rows * depth * columns == 0 || PyArray_DIM(b, 0) != depth) {
    PyObject* found = fall_back(args, 2);
    if (found == nullptr || !turned) return found;
    Ref taken = Ref::take(found);
    Ref other = Ref::take(PyArray_Transpose(as_array(found), nullptr));
    return other ? PyArray_NewCopy(as_array(other.get()), NPY_KEEPORDER) : nullptr;
  }
  npy_intp size[2] = {turned ? columns : rows, turned ? rows : columns};
  PyArray_Descr* descr = PyArray_DESCR(a);
  Py_INCREF(descr);
  PyObject* made = PyArray_NewFromDescr(&PyArray_Type, descr, 2, size, nullptr, nullptr,
                                        turned ? NPY_ARRAY_F_CONTIGUOUS : 0, nullptr);
  if (made == nullptr) return nullptr;
  const npy_intp step = PyArray_ITEMSIZE(a);
  char* data[3] = {PyArray_BYTES(a), PyArray_BYTES(b), PyArray_BYTES(as_array(made))};
  const npy_intp dimensions[4] = {1, rows, depth, columns};
  const npy_intp steps[9] = {0, 0, 0,
                             PyArray_STRIDE(a, 0), PyArray_STRIDE(a, 1),
                             PyArray_STRIDE(b, 0), PyArray_STRIDE(b, 1),
                             step * columns, step};
  PyThreadState* state =
      rows * depth * columns > kWithInterpreter ? PyEval_SaveThread() : nullptr;
  loop.function(data, dimensions, steps, loop.data);
  if (state != nullptr) PyEval_RestoreThread(state);
  return made;
}

template <typename T>
void add_rows(const char* x, T* out, npy_intp rows, npy_intp columns) {
  const T* in = reinterpret_cast<const T*>(x);
  std::fill(out, out + columns, T(0));  // as NumPy does: a sum of -0.0 alone is 0.0
  for (npy_intp i = 0; i < rows; ++i, in += columns) {
    for (npy_intp j = 0; j < columns; ++j) out[j] += in[j];
  }
}

// A vector of class indices, and the number of an argument; false for others.
bool read_targets(PyObject* target, PyObject* dim, PyObject* ignored, int64_t* out) {
  if (!is_plain_array(target, 1) || PyArray_TYPE(as_array(target)) != NPY_INT64) return false;
  if (!PyLong_CheckExact(dim) || PyLong_AsLong(dim) != 1 || !PyLong_CheckExact(ignored)) {
    PyErr_Clear();
    return false;
  }
  *out = PyLong_AsLongLong(ignored);
  if (*out == -1 && PyErr_Occurred()) {
    PyErr_Clear();
    return false;
  }
  return true;
}

int64_t target_at(PyArrayObject* target, npy_intp i) {
  return *reinterpret_cast<const int64_t*>(PyArray_BYTES(target) + i * PyArray_STRIDE(target, 0));
}

bool in_range(PyArrayObject* target, int64_t ignored, npy_intp classes) {
  for (npy_intp i = 0; i < PyArray_DIM(target, 0); ++i) {
    const int64_t t = target_at(target, i);
    if (t != ignored && (t < 0 || t >= classes)) return false;
  }
  return true;
}

PyObject* zeros(int dims, const npy_intp* size, PyArrayObject* like) {
  PyArray_Descr* descr = PyArray_DESCR(like);
  Py_INCREF(descr);
  return PyArray_Zeros(dims, const_cast<npy_intp*>(size), descr, 0);
}

}  // namespace

PyObject* multiply_matrices(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return too_few(count, 3) ? nullptr : multiply(args, false);
}

PyObject* multiply_turned(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return too_few(count, 3) ? nullptr : multiply(args, true);
}

PyObject* sum_rows(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (too_few(count, 3)) return nullptr;
  PyObject* size = args[2];
  if (!is_plain_array(args[1], 2) || !is_float(args[1]) ||
      !PyArray_IS_C_CONTIGUOUS(as_array(args[1])) || !PyTuple_CheckExact(size) ||
      PyTuple_GET_SIZE(size) != 1) {
    return fall_back(args, 2);
  }
  PyArrayObject* x = as_array(args[1]);
  const npy_intp rows = PyArray_DIM(x, 0);
  npy_intp columns = PyArray_DIM(x, 1);
  const Py_ssize_t wanted = PyLong_AsSsize_t(PyTuple_GET_ITEM(size, 0));
  if (wanted == -1 && PyErr_Occurred()) return nullptr;
  // A single column lies along the memory, where NumPy adds in pairs.
  if (wanted != columns || columns < 2 || rows < 1 || rows > kRowsAddedInTheirType) {
    return fall_back(args, 2);
  }
  PyObject* made = PyArray_SimpleNew(1, &columns, PyArray_TYPE(x));
  if (made == nullptr) return nullptr;
  void* out = PyArray_DATA(as_array(made));
  if (PyArray_TYPE(x) == NPY_FLOAT) {
    add_rows(PyArray_BYTES(x), static_cast<float*>(out), rows, columns);
  } else {
    add_rows(PyArray_BYTES(x), static_cast<double*>(out), rows, columns);
  }
  return made;
}

PyObject* pick_class(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (too_few(count, 6)) return nullptr;
  int64_t ignored;
  if (!is_plain_array(args[1], 2) || !is_float(args[1]) ||
      !read_targets(args[2], args[3], args[4], &ignored)) {
    return fall_back(args, 5);
  }
  PyArrayObject* x = as_array(args[1]);
  PyArrayObject* target = as_array(args[2]);
  const npy_intp rows = PyArray_DIM(x, 0);
  if (PyArray_DIM(target, 0) != rows || !in_range(target, ignored, PyArray_DIM(x, 1))) {
    return fall_back(args, 5);
  }
  PyObject* made = zeros(1, &rows, x);
  if (made == nullptr) return nullptr;
  const auto size = static_cast<size_t>(PyArray_ITEMSIZE(x));
  char* out = PyArray_BYTES(as_array(made));
  for (npy_intp i = 0; i < rows; ++i) {
    const int64_t t = target_at(target, i);
    if (t == ignored) continue;
    const char* from = PyArray_BYTES(x) + i * PyArray_STRIDE(x, 0) + t * PyArray_STRIDE(x, 1);
    std::memcpy(out + static_cast<size_t>(i) * size, from, size);
  }
  return made;
}

// `args[1]` has one element for each target, or one for all of them where it has no more.
PyObject* place_class(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (too_few(count, 6)) return nullptr;
  int64_t ignored;
  PyArrayObject* g = is_array(args[1]) ? as_array(args[1]) : nullptr;
  const bool plain = g != nullptr && PyArray_ISBEHAVED_RO(g) && is_float(args[1]) &&
                     PyArray_NDIM(g) <= 1 && PyLong_CheckExact(args[5]) &&
                     read_targets(args[2], args[3], args[4], &ignored);
  if (plain) {
    PyArrayObject* target = as_array(args[2]);
    const npy_intp rows = PyArray_DIM(target, 0);
    const npy_intp classes = PyLong_AsSsize_t(args[5]);
    if (classes == -1 && PyErr_Occurred()) return nullptr;
    const bool one = PyArray_SIZE(g) == 1;
    if ((one || PyArray_SIZE(g) == rows) && in_range(target, ignored, classes)) {
      const npy_intp size[2] = {rows, classes};
      PyObject* made = zeros(2, size, g);
      if (made == nullptr) return nullptr;
      const npy_intp item = PyArray_ITEMSIZE(g);
      const npy_intp step = one ? 0 : PyArray_STRIDE(g, 0);
      char* out = PyArray_BYTES(as_array(made));
      for (npy_intp i = 0; i < rows; ++i) {
        const int64_t t = target_at(target, i);
        if (t == ignored) continue;
        std::memcpy(out + (i * classes + t) * item, PyArray_BYTES(g) + i * step,
                    static_cast<size_t>(item));
      }
      return made;
    }
  }
  if (g != nullptr && PyArray_SIZE(g) == 1 && is_array(args[2])) {  // repeat it for NumPy's way
    PyArrayObject* target = as_array(args[2]);
    Ref wide = Ref::take(zeros(PyArray_NDIM(target), PyArray_DIMS(target), g));
    if (!wide || PyArray_CopyInto(as_array(wide.get()), g) != 0) return nullptr;
    PyObject* again[6] = {args[0], wide.get(), args[2], args[3], args[4], args[5]};
    return fall_back(again, 5);
  }
  return fall_back(args, 5);
}

bool prepare_steps() {
  Ref numpy = Ref::take(PyImport_ImportModule("numpy"));
  if (!numpy) return false;
  Ref matmul = Ref::take(PyObject_GetAttrString(numpy.get(), "matmul"));
  if (!matmul) return false;
  if (PyObject_TypeCheck(matmul.get(), &PyUFunc_Type)) {  // else all products are NumPy's calls
    float_product = loop_of(matmul.get(), NPY_FLOAT);
    double_product = loop_of(matmul.get(), NPY_DOUBLE);
  }
  return true;
}

}  // namespace tensorplay

// Steps of compiled graphs that are no kernels: what `compiler/cpp/array_calls.py` calls on arrays.
//
// Each function takes NumPy's way first, which is the reference, and calls it for all arrays but plain
// ones. What comes back has the same bits.
#include "steps.h"

#include <algorithm>
#include <cstring>

#include "classes.h"
#include "ref.h"

namespace tensorplay {

namespace {

constexpr npy_intp kWithInterpreter = 1 << 16;  // multiplications below which keeping it is cheaper

Loop float_product, double_product;  // NumPy's own, of matrices of one type

bool is_plain_array(PyObject* object, int dims) {
  return PyArray_CheckExact(object) && PyArray_NDIM(as_array(object)) == dims &&
         PyArray_ISBEHAVED_RO(as_array(object));
}

bool is_float(PyObject* object) {
  const int type = PyArray_TYPE(as_array(object));
  return type == NPY_FLOAT || type == NPY_DOUBLE;
}

// Whether a dimension is 1, that of the classes of a matrix.
bool is_one(PyObject* dim) {
  int overflow = 0;
  return PyLong_CheckExact(dim) && PyLong_AsLongAndOverflow(dim, &overflow) == 1;
}

PyObject* fall_back(PyObject* const* args, Py_ssize_t count) {
  return PyObject_Vectorcall(args[0], args + 1, static_cast<size_t>(count), nullptr);
}

bool too_few(Py_ssize_t given, Py_ssize_t expected) {
  if (given == expected) return false;
  PyErr_Format(PyExc_TypeError, "expected %zd arguments, got %zd", expected, given);
  return true;
}

// The product of two matrices; `transposed`: its transpose, in memory of its own.
PyObject* multiply(PyObject* const* args, bool transposed) {
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
  if (loop.run != nullptr) {
    a = as_array(args[1]);
    b = as_array(args[2]);
    rows = PyArray_DIM(a, 0);
    depth = PyArray_DIM(a, 1);
    columns = PyArray_DIM(b, 1);
  }
  if (rows == 0 || depth == 0 || columns == 0 || PyArray_DIM(b, 0) != depth) {
    PyObject* found = fall_back(args, 2);
    if (found == nullptr || !transposed) return found;
    Ref taken = Ref::take(found);
    Ref other = Ref::take(PyArray_Transpose(as_array(found), nullptr));
    return other ? PyArray_NewCopy(as_array(other.get()), NPY_KEEPORDER) : nullptr;
  }
  npy_intp size[2] = {transposed ? columns : rows, transposed ? rows : columns};
  PyArray_Descr* descr = PyArray_DESCR(a);
  Py_INCREF(descr);
  PyObject* made = PyArray_NewFromDescr(&PyArray_Type, descr, 2, size, nullptr, nullptr,
                                        transposed ? NPY_ARRAY_F_CONTIGUOUS : 0, nullptr);
  if (made == nullptr) return nullptr;
  const npy_intp step = PyArray_ITEMSIZE(a);
  char* data[3] = {PyArray_BYTES(a), PyArray_BYTES(b), PyArray_BYTES(as_array(made))};
  const npy_intp dimensions[4] = {1, rows, depth, columns};
  const npy_intp steps[9] = {0, 0, 0,
                             PyArray_STRIDE(a, 0), PyArray_STRIDE(a, 1),
                             PyArray_STRIDE(b, 0), PyArray_STRIDE(b, 1),
                             step * columns, step};
  // An operand that is broadcast has more elements than memory: their number may pass any integer.
  const double products = static_cast<double>(rows) * static_cast<double>(depth) *
                          static_cast<double>(columns);
  PyThreadState* state = products > kWithInterpreter ? PyEval_SaveThread() : nullptr;
  loop.run(data, dimensions, steps, loop.data);
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

// NumPy adds row by row, starting from zero. Whether that is all it does is found out once for each
// type, by sums that come out otherwise in any other order. 1, 0, or -1 with an error set.
template <typename T>
int rows_agree(int type) {
  constexpr npy_intp shapes[][2] = {{1, 2}, {9, 3}, {130, 17}, {1000, 2}};
  for (const auto& shape : shapes) {
    Ref array = Ref::take(PyArray_SimpleNew(2, const_cast<npy_intp*>(shape), type));
    Ref ours = Ref::take(array ? PyArray_SimpleNew(1, const_cast<npy_intp*>(shape + 1), type)
                               : nullptr);
    if (!ours) return -1;
    T* elements = static_cast<T*>(PyArray_DATA(as_array(array.get())));
    fill_for_sums(elements, shape[0] * shape[1]);
    if (shape[0] == 1) elements[0] = static_cast<T>(-0.0);
    Ref theirs = Ref::take(PyArray_Sum(as_array(array.get()), 0, type, nullptr));
    if (!theirs) return -1;
    T* sums = static_cast<T*>(PyArray_DATA(as_array(ours.get())));
    add_rows(PyArray_BYTES(as_array(array.get())), sums, shape[0], shape[1]);
    if (!PyArray_CheckExact(theirs.get()) || PyArray_SIZE(as_array(theirs.get())) != shape[1] ||
        std::memcmp(sums, PyArray_DATA(as_array(theirs.get())),
                    static_cast<size_t>(shape[1]) * sizeof(T)) != 0) {
      return 0;
    }
  }
  return 1;
}

int adds_row_by_row(int type) {
  static int known[2] = {-1, -1};
  int& answer = known[type == NPY_FLOAT ? 0 : 1];
  if (answer < 0) answer = type == NPY_FLOAT ? rows_agree<float>(type) : rows_agree<double>(type);
  return answer;
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

PyObject* transposed_product(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return too_few(count, 3) ? nullptr : multiply(args, true);
}

PyObject* sum_axis_0(PyObject*, PyObject* const* args, Py_ssize_t count) {
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
  if (wanted != columns || columns < 2 || rows < 1 || rows > most_of_a_small_sum) {
    return fall_back(args, 2);
  }
  const int agree = adds_row_by_row(PyArray_TYPE(x));
  if (agree < 0) return nullptr;
  if (agree == 0) return fall_back(args, 2);
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
  Classes classes;
  if (!is_plain_array(args[1], 2) || !is_float(args[1]) || !is_one(args[3]) ||
      !classes.read(args[2], args[4], PyArray_DIM(as_array(args[1]), 1)) ||
      classes.count != PyArray_DIM(as_array(args[1]), 0)) {
    return fall_back(args, 5);
  }
  PyArrayObject* x = as_array(args[1]);
  PyObject* made = zeros(1, &classes.count, x);
  if (made == nullptr) return nullptr;
  const auto size = static_cast<size_t>(PyArray_ITEMSIZE(x));
  char* out = PyArray_BYTES(as_array(made));
  for (npy_intp i = 0; i < classes.count; ++i) {
    if (classes.is_ignored(i)) continue;
    const char* from =
        PyArray_BYTES(x) + i * PyArray_STRIDE(x, 0) + classes.at(i) * PyArray_STRIDE(x, 1);
    std::memcpy(out + static_cast<size_t>(i) * size, from, size);
  }
  return made;
}

// `args[1]` has one element for each target, or one for all of them where it has no more.
PyObject* place_class(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (too_few(count, 6)) return nullptr;
  PyArrayObject* g = PyArray_CheckExact(args[1]) ? as_array(args[1]) : nullptr;
  if (g != nullptr && PyArray_ISBEHAVED_RO(g) && is_float(args[1]) && PyArray_NDIM(g) <= 1 &&
      PyLong_CheckExact(args[5]) && is_one(args[3])) {
    const npy_intp columns = PyLong_AsSsize_t(args[5]);
    if (columns == -1 && PyErr_Occurred()) return nullptr;
    const bool one = PyArray_SIZE(g) == 1;
    Classes classes;
    if (classes.read(args[2], args[4], columns) && (one || PyArray_SIZE(g) == classes.count)) {
      const npy_intp size[2] = {classes.count, columns};
      PyObject* made = zeros(2, size, g);
      if (made == nullptr) return nullptr;
      const npy_intp item = PyArray_ITEMSIZE(g);
      const npy_intp step = one ? 0 : PyArray_STRIDE(g, 0);
      char* out = PyArray_BYTES(as_array(made));
      for (npy_intp i = 0; i < classes.count; ++i) {
        if (classes.is_ignored(i)) continue;
        std::memcpy(out + (i * columns + classes.at(i)) * item, PyArray_BYTES(g) + i * step,
                    static_cast<size_t>(item));
      }
      return made;
    }
  }
  if (g != nullptr && PyArray_SIZE(g) == 1 && PyArray_CheckExact(args[2])) {  // repeat it for NumPy's way
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

// Views of the short ways, each as the function of the same name in the declaration makes it.
#include <cstring>
#include <initializer_list>

#include "quick.h"

namespace tensorplay {
namespace {

// A new array on a part of the memory of another.
PyObject* view_of(PyArrayObject* array, int ndim, npy_intp const* shape, npy_intp const* strides,
                  char* data) {
  PyArray_Descr* descr = PyArray_DESCR(array);
  Py_INCREF(descr);  // the call takes it over
  PyObject* view = PyArray_NewFromDescr(&PyArray_Type, descr, ndim, shape, strides, data,
                                        PyArray_FLAGS(array), nullptr);
  if (view == nullptr) return nullptr;
  PyObject* owner = Py_NewRef(reinterpret_cast<PyObject*>(array));  // taken over
  if (PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(view), owner) != 0) {
    Py_DECREF(view);
    return nullptr;
  }
  return view;
}

PyObject* miss() { return nullptr; }

PyObject* or_miss(PyObject* result) {
  if (result == nullptr) is_refusal();
  return result;
}

// Read an index or a size; false for what is none, or too large to be one.
bool read_int(PyObject* object, npy_intp* out) {
  if (!PyLong_CheckExact(object)) return false;
  *out = PyLong_AsSsize_t(object);
  if (*out == -1 && PyErr_Occurred()) {
    PyErr_Clear();
    return false;
  }
  return true;
}

// Read a tuple of ints.
bool read_ints(PyObject* object, npy_intp* out, Py_ssize_t most) {
  if (!PyTuple_CheckExact(object) || PyTuple_GET_SIZE(object) > most) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i) {
    if (!read_int(PyTuple_GET_ITEM(object, i), &out[i])) return false;
  }
  return true;
}

// reshape(shape)
PyObject* reshape(PyArrayObject* array, PyObject* const* rest, PyObject** normal) {
  npy_intp shape[NPY_MAXDIMS];
  if (!read_ints(rest[0], shape, NPY_MAXDIMS)) return miss();
  const int ndim = static_cast<int>(PyTuple_GET_SIZE(rest[0]));
  int open = -1;
  for (int i = 0; i < ndim; ++i) {
    if (shape[i] >= 0) continue;
    if (shape[i] != -1 || open >= 0) return miss();
    open = i;
  }
  PyObject* view;
  if (PyArray_IS_C_CONTIGUOUS(array)) {
    npy_intp count = 1;
    for (int i = 0; i < ndim; ++i) {
      if (i != open && __builtin_mul_overflow(count, shape[i], &count)) return miss();
    }
    const npy_intp size = PyArray_SIZE(array);
    if (open >= 0) {
      if (count == 0 || size % count != 0) return miss();
      shape[open] = size / count;
    } else if (count != size) {
      return miss();
    }
    // Of its own shape an array keeps its strides, which mean nothing for sizes of 1 but are seen.
    const bool same = open < 0 && ndim == PyArray_NDIM(array) &&
                      PyArray_CompareLists(shape, PyArray_DIMS(array), ndim);
    view = view_of(array, ndim, shape, same ? PyArray_STRIDES(array) : nullptr,
                   PyArray_BYTES(array));
  } else {
    PyArray_Dims dims{shape, ndim};
    view = or_miss(PyArray_Newshape(array, &dims, NPY_CORDER));
  }
  if (view != nullptr && open >= 0) {
    PyObject* found = shape_of(reinterpret_cast<PyArrayObject*>(view));
    *normal = found == nullptr ? nullptr : PyTuple_Pack(1, found);
    Py_XDECREF(found);
    if (*normal == nullptr) Py_CLEAR(view);
  }
  return view;
}

// permute(dims)
PyObject* permute(PyArrayObject* array, PyObject* const* rest, PyObject**) {
  npy_intp order[NPY_MAXDIMS];
  if (!read_ints(rest[0], order, NPY_MAXDIMS) ||
      PyTuple_GET_SIZE(rest[0]) != PyArray_NDIM(array)) {
    return miss();
  }
  PyArray_Dims dims{order, PyArray_NDIM(array)};
  return or_miss(PyArray_Transpose(array, &dims));
}

// transpose(dim0, dim1)
PyObject* transpose(PyArrayObject* array, PyObject* const* rest, PyObject**) {
  const int ndim = PyArray_NDIM(array);
  npy_intp axes[2];
  for (int i = 0; i < 2; ++i) {
    if (!read_int(rest[i], &axes[i])) return miss();
    if (axes[i] < 0) axes[i] += ndim;
    if (axes[i] < 0 || axes[i] >= ndim) return miss();
  }
  npy_intp shape[NPY_MAXDIMS], strides[NPY_MAXDIMS];
  for (int i = 0; i < ndim; ++i) {
    const npy_intp from = i == axes[0] ? axes[1] : i == axes[1] ? axes[0] : i;
    shape[i] = PyArray_DIM(array, static_cast<int>(from));
    strides[i] = PyArray_STRIDE(array, static_cast<int>(from));
  }
  return view_of(array, ndim, shape, strides, PyArray_BYTES(array));
}

// unsqueeze(dim)
PyObject* unsqueeze(PyArrayObject* array, PyObject* const* rest, PyObject**) {
  const int ndim = PyArray_NDIM(array) + 1;
  npy_intp dim;
  if (!read_int(rest[0], &dim) || ndim > NPY_MAXDIMS) return miss();
  if (dim < 0) dim += ndim;
  if (dim < 0 || dim >= ndim) return miss();
  npy_intp shape[NPY_MAXDIMS];
  for (int i = 0; i < ndim; ++i) {
    shape[i] = i == dim ? 1 : PyArray_DIM(array, i < dim ? i : i - 1);
  }
  PyArray_Dims dims{shape, ndim};
  return or_miss(PyArray_Newshape(array, &dims, NPY_CORDER));
}

// squeeze(dim=None)
PyObject* squeeze(PyArrayObject* array, PyObject* const* rest, PyObject** normal) {
  const int ndim = PyArray_NDIM(array);
  npy_intp dim = 0;
  const bool all = rest[0] == Py_None;
  if (!all) {
    const int places = ndim == 0 ? 1 : ndim;  // 0 and -1 are dimensions of a single number too
    if (!read_int(rest[0], &dim)) return miss();
    if (dim < 0) dim += places;
    if (dim < 0 || dim >= places) return miss();
  }
  npy_intp shape[NPY_MAXDIMS], strides[NPY_MAXDIMS];
  int kept = 0;
  for (int i = 0; i < ndim; ++i) {
    if (PyArray_DIM(array, i) == 1 && (all || i == dim)) continue;
    shape[kept] = PyArray_DIM(array, i);
    strides[kept++] = PyArray_STRIDE(array, i);
  }
  if (!all) {
    PyObject* dims = PyTuple_Pack(1, rest[0]);
    *normal = dims == nullptr ? nullptr : PyTuple_Pack(1, dims);
    Py_XDECREF(dims);
    if (*normal == nullptr) return nullptr;
  }
  return view_of(array, kept, shape, strides, PyArray_BYTES(array));
}

// expand(size)
PyObject* expand(PyArrayObject* array, PyObject* const* rest, PyObject**) {
  npy_intp shape[NPY_MAXDIMS], strides[NPY_MAXDIMS];
  if (!read_ints(rest[0], shape, NPY_MAXDIMS)) return miss();
  const int ndim = static_cast<int>(PyTuple_GET_SIZE(rest[0]));
  const int lead = ndim - PyArray_NDIM(array);
  if (lead < 0) return miss();
  for (int i = 0; i < ndim; ++i) {
    const npy_intp present = i < lead ? 1 : PyArray_DIM(array, i - lead);
    if (shape[i] == -1 && i >= lead) shape[i] = present;
    // NumPy has its own strides for arrays without elements.
    if (shape[i] <= 0 || (present != 1 && present != shape[i])) return miss();
    strides[i] = present == 1 ? 0 : PyArray_STRIDE(array, i - lead);
  }
  return or_miss(view_of(array, ndim, shape, strides, PyArray_BYTES(array)));
}

// A slice of numbers that never change, and that goes forward.
bool is_basic(PyObject* object) {
  auto* slice = reinterpret_cast<PySliceObject*>(object);
  for (PyObject* bound : {slice->start, slice->stop, slice->step}) {
    if (bound != Py_None && !PyLong_CheckExact(bound)) return false;
  }
  return true;
}

// A part of an array: numbers, slices and one Ellipsis, as NumPy's basic indexing has them.
class Part {
 public:
  explicit Part(PyArrayObject* array) : array_(array), data_(PyArray_BYTES(array)) {}

  bool add(PyObject* item) {
    if (from_ >= PyArray_NDIM(array_)) return false;
    const npy_intp size = PyArray_DIM(array_, from_);
    const npy_intp stride = PyArray_STRIDE(array_, from_);
    if (PyLong_CheckExact(item)) {
      npy_intp place;
      if (!read_int(item, &place) || place < -size || place >= size) return false;
      data_ += stride * (place < 0 ? place + size : place);
      ++from_;
      return true;
    }
    Py_ssize_t start, stop, step;
    if (!PySlice_Check(item) || !is_basic(item)) return false;
    if (PySlice_Unpack(item, &start, &stop, &step) != 0) {  // a step of zero
      PyErr_Clear();
      return false;
    }
    if (step <= 0) return false;
    const npy_intp length = PySlice_AdjustIndices(size, &start, &stop, step);
    if (length <= 0) {  // as NumPy: nothing, from the beginning
      start = 0;
      step = 1;
    }
    data_ += stride * start;
    shape_[to_] = length;
    strides_[to_++] = stride * step;
    ++from_;
    return true;
  }

  // Take this many dimensions whole.
  void skip(int count) {
    for (; count > 0; --count, ++from_) {
      shape_[to_] = PyArray_DIM(array_, from_);
      strides_[to_++] = PyArray_STRIDE(array_, from_);
    }
  }

  PyObject* view() {
    skip(PyArray_NDIM(array_) - from_);
    return view_of(array_, to_, shape_, strides_, data_);
  }

 private:
  PyArrayObject* array_;
  char* data_;
  int from_ = 0;
  int to_ = 0;
  npy_intp shape_[NPY_MAXDIMS];
  npy_intp strides_[NPY_MAXDIMS];
};

// _slice by a key
PyObject* slice(PyArrayObject* array, PyObject* const* rest, PyObject**) {
  PyObject* key = rest[0];
  Part part(array);
  if (!PyTuple_CheckExact(key)) return part.add(key) ? part.view() : miss();
  const Py_ssize_t count = PyTuple_GET_SIZE(key);
  bool open = false;  // whether there was an Ellipsis
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* item = PyTuple_GET_ITEM(key, i);
    if (item == Py_Ellipsis) {
      const Py_ssize_t whole = PyArray_NDIM(array) - (count - 1);
      if (open || whole < 0) return miss();
      part.skip(static_cast<int>(whole));
      open = true;
    } else if (!part.add(item)) {
      return miss();
    }
  }
  return part.view();
}

constexpr struct {
  const char* name;
  ViewFunction function;
} views[] = {
    {"reshape", reshape},     {"permute", permute}, {"transpose", transpose}, {"expand", expand},
    {"unsqueeze", unsqueeze}, {"squeeze", squeeze}, {"_slice", slice},
};

}  // namespace

ViewFunction find_view(const char* name) {
  for (const auto& known : views) {
    if (std::strcmp(known.name, name) == 0) return known.function;
  }
  return nullptr;
}

}  // namespace tensorplay

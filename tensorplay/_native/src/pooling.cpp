// The largest elements of windows, and sums at their places, channel by channel.
#include <algorithm>
#include <cstring>

#include "launch.h"
#include "vectors.h"
#include "windows.h"

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL tensorplay_pooling_array_api
#include <numpy/arrayobject.h>

namespace tensorplay {

namespace {

constexpr int64_t kWithoutThreads = 32768;
constexpr int64_t kWithInterpreter = 8192;
constexpr int64_t kTask = 8192;  // elements

PyArrayObject* array_of(PyObject* object) {
  if (!PyArray_CheckExact(object)) return nullptr;
  auto* a = reinterpret_cast<PyArrayObject*>(object);
  return PyArray_ISCARRAY_RO(a) ? a : nullptr;
}

// --- the largest ----------------------------------------------------------------------------------

// Two dimensions; of one there is a first of size 1.
struct Pool {
  const void* x;
  void* values;
  int64_t* places;
  int64_t channels, batch;  // of a task
  int level;                // of vectors
  int64_t size[2], counts[2], kernel[2], stride[2], padding[2], dilation[2];

  // The places of the kernel that lie inside, from the first to before the last.
  void inside(int d, int64_t start, int64_t* first, int64_t* last) const {
    *first = start < 0 ? (-start + dilation[d] - 1) / dilation[d] : 0;
    *last = std::min(kernel[d], (size[d] - start + dilation[d] - 1) / dilation[d]);
  }

  // The largest of `rows` by `columns` elements, the first of equal ones and of NaN.
  template <typename T>
  void largest(const T* source, int64_t at, int64_t rows, int64_t columns, T* value,
               int64_t* place) const {
    int64_t best = at;
    T most = source[at];
    for (int64_t y = 0; y < rows; ++y) {
      for (int64_t x = 0; x < columns; ++x) {
        int64_t here = at + y * dilation[0] * size[1] + x * dilation[1];
        T found = source[here];
        bool more = !(found <= most) & (most == most);
        most = more ? found : most;
        best = more ? here : best;
      }
    }
    *value = most;
    *place = best;
  }

  template <typename T>
  void channel(int64_t number) const {
    const T* source = static_cast<const T*>(x) + number * size[0] * size[1];
    int64_t at = number * counts[0] * counts[1];
    T* value = static_cast<T*>(values) + at;
    int64_t* place = places + at;
    for (int64_t i = 0; i < counts[0]; ++i, value += counts[1], place += counts[1]) {
      int64_t top = i * stride[0] - padding[0], first_row, last_row;
      inside(0, top, &first_row, &last_row);
      int64_t row = (top + first_row * dilation[0]) * size[1], rows = last_row - first_row;
      // Of windows in the middle all columns are inside.
      int64_t from = std::min(counts[1], (padding[1] + stride[1] - 1) / stride[1]);
      int64_t room = size[1] + padding[1] - (kernel[1] - 1) * dilation[1] - 1;
      int64_t to = std::max(from, std::min(counts[1], room < 0 ? 0 : room / stride[1] + 1));
#if defined(__GNUC__)
      int narrow = level;
      while (narrow > 0 && to - from < tiles_of<T>(narrow).lanes) --narrow;
      const Tiles<T>& tiles = tiles_of<T>(narrow);
      if (to - from >= tiles.lanes) {
        int64_t first = row + from * stride[1] - padding[1];
        tiles.largest(source + first,
                      {to - from, stride[1], rows, kernel[1], dilation[0] * size[1], dilation[1], first},
                      value + from, place + from);
      } else {
        to = from;
      }
#else
      to = from;
#endif
      for (int64_t j = 0; j < counts[1]; ++j) {
        if (j >= from && j < to) continue;
        int64_t left = j * stride[1] - padding[1], first, last;
        inside(1, left, &first, &last);
        largest<T>(source, row + left + first * dilation[1], rows, last - first, value + j, place + j);
      }
    }
  }

  template <typename T>
  static void run(void* context, int64_t number) {
    auto* pool = static_cast<Pool*>(context);
    int64_t end = std::min((number + 1) * pool->batch, pool->channels);
    for (int64_t i = number * pool->batch; i < end; ++i) pool->channel<T>(i);
  }
};

bool read_pairs(PyObject* tuple, int dims, int64_t missing, int64_t* to) {
  to[0] = missing;
  for (int d = 0; d < dims; ++d) {
    Py_ssize_t n = PyNumber_AsSsize_t(PyTuple_GET_ITEM(tuple, d), PyExc_OverflowError);
    if (n == -1 && PyErr_Occurred()) return false;
    to[2 - dims + d] = n;
  }
  return true;
}

// --- sums at places -------------------------------------------------------------------------------

struct Sums {
  const void* values;
  const int64_t* places;
  void* out;
  int64_t rows, batch, count, size;

  template <typename T>
  static void run(void* context, int64_t number) {
    auto* sums = static_cast<Sums*>(context);
    int64_t end = std::min((number + 1) * sums->batch, sums->rows);
    for (int64_t row = number * sums->batch; row < end; ++row) {
      T* to = static_cast<T*>(sums->out) + row * sums->size;
      const T* from = static_cast<const T*>(sums->values) + row * sums->count;
      const int64_t* place = sums->places + row * sums->count;
      for (int64_t i = 0; i < sums->count; ++i) to[place[i]] += from[i];
    }
  }
};

template <typename Context>
void in_threads(void (*run)(void*, int64_t), Context* context, int64_t tasks, int64_t work) {
  PyThreadState* state = work > kWithInterpreter ? PyEval_SaveThread() : nullptr;
  run_in_threads(run, context, tasks, work > kWithoutThreads);
  if (state != nullptr) PyEval_RestoreThread(state);
}

}  // namespace

PyObject* pool_largest(PyObject*, PyObject* args) {
  PyObject *objects[3], *geometry[4];
  int level = -1;
  if (!PyArg_ParseTuple(args, "OOOO!O!O!O!|i", &objects[0], &objects[1], &objects[2], &PyTuple_Type,
                        &geometry[0], &PyTuple_Type, &geometry[1], &PyTuple_Type, &geometry[2],
                        &PyTuple_Type, &geometry[3], &level)) {
    return nullptr;
  }
  PyArrayObject* arrays[3];
  for (int i = 0; i < 3; ++i) {
    arrays[i] = array_of(objects[i]);
    if (arrays[i] == nullptr || PyArray_SIZE(arrays[i]) == 0) Py_RETURN_FALSE;
  }
  int dims = static_cast<int>(PyTuple_GET_SIZE(geometry[0])), all = PyArray_NDIM(arrays[0]);
  int type = PyArray_TYPE(arrays[0]);
  if ((type != NPY_FLOAT && type != NPY_DOUBLE) || PyArray_TYPE(arrays[1]) != type ||
      PyArray_TYPE(arrays[2]) != NPY_INT64 || dims < 1 || dims > 2 || all < dims ||
      PyArray_NDIM(arrays[1]) != all || !PyArray_SAMESHAPE(arrays[1], arrays[2]) ||
      !PyArray_ISWRITEABLE(arrays[1]) || !PyArray_ISWRITEABLE(arrays[2])) {
    Py_RETURN_FALSE;
  }
  Pool pool{};
  int64_t* numbers[4] = {pool.kernel, pool.stride, pool.padding, pool.dilation};
  for (int i = 0; i < 4; ++i) {
    if (PyTuple_GET_SIZE(geometry[i]) != dims) Py_RETURN_FALSE;
    if (!read_pairs(geometry[i], dims, i == 2 ? 0 : 1, numbers[i])) return nullptr;
  }
  const npy_intp* x = PyArray_DIMS(arrays[0]);
  const npy_intp* y = PyArray_DIMS(arrays[1]);
  pool.channels = 1;
  for (int d = 0; d < all - dims; ++d) {
    if (x[d] != y[d]) Py_RETURN_FALSE;
    pool.channels *= x[d];
  }
  pool.size[0] = pool.counts[0] = 1;
  for (int d = 0; d < dims; ++d) {
    pool.size[2 - dims + d] = x[all - dims + d];
    pool.counts[2 - dims + d] = y[all - dims + d];
  }
  int64_t each = pool.counts[0] * pool.counts[1];
  for (int d = 0; d < 2; ++d) {
    if (pool.kernel[d] < 1 || pool.stride[d] < 1 || pool.dilation[d] < 1 || pool.padding[d] < 0) {
      Py_RETURN_FALSE;
    }
    // Each window must see an element: of what lies between all windows, the first and the last do.
    for (int64_t i = 0; i < pool.counts[d]; ++i) {
      int64_t first, last;
      pool.inside(d, i * pool.stride[d] - pool.padding[d], &first, &last);
      if (first >= last) Py_RETURN_FALSE;
    }
    each *= pool.kernel[d];
  }
#if defined(__GNUC__)
  pool.level = level < 0 || level > best_level() ? best_level() : level;
  // Vectors of places in a channel have as many bits as those of its elements.
  if (type == NPY_FLOAT && pool.size[0] * pool.size[1] > INT32_MAX) Py_RETURN_FALSE;
#endif
  pool.x = PyArray_DATA(arrays[0]);
  pool.values = PyArray_DATA(arrays[1]);
  pool.places = static_cast<int64_t*>(PyArray_DATA(arrays[2]));
  pool.batch = std::max<int64_t>(1, kTask / each);
  in_threads(type == NPY_FLOAT ? Pool::run<float> : Pool::run<double>, &pool,
             (pool.channels + pool.batch - 1) / pool.batch, pool.channels * each);
  Py_RETURN_TRUE;
}

PyObject* add_at_places(PyObject*, PyObject* args) {
  PyObject* objects[3];
  if (!PyArg_ParseTuple(args, "OOO", &objects[0], &objects[1], &objects[2])) return nullptr;
  PyArrayObject* arrays[3];
  for (int i = 0; i < 3; ++i) {
    arrays[i] = array_of(objects[i]);
    if (arrays[i] == nullptr || PyArray_SIZE(arrays[i]) == 0) Py_RETURN_FALSE;
  }
  int type = PyArray_TYPE(arrays[0]), dims = PyArray_NDIM(arrays[0]);
  if ((type != NPY_FLOAT && type != NPY_DOUBLE) || PyArray_TYPE(arrays[2]) != type || dims < 1 ||
      PyArray_TYPE(arrays[1]) != NPY_INT64 || PyArray_NDIM(arrays[2]) != dims ||
      !PyArray_SAMESHAPE(arrays[1], arrays[2]) || !PyArray_ISWRITEABLE(arrays[0])) {
    Py_RETURN_FALSE;
  }
  for (int d = 0; d < dims - 1; ++d) {
    if (PyArray_DIM(arrays[0], d) != PyArray_DIM(arrays[1], d)) Py_RETURN_FALSE;
  }
  Sums sums{};
  sums.out = PyArray_DATA(arrays[0]);
  sums.places = static_cast<const int64_t*>(PyArray_DATA(arrays[1]));
  sums.values = PyArray_DATA(arrays[2]);
  sums.size = PyArray_DIM(arrays[0], dims - 1);
  sums.count = PyArray_DIM(arrays[1], dims - 1);
  int64_t total = PyArray_SIZE(arrays[1]);
  sums.rows = total / sums.count;
  for (int64_t i = 0; i < total; ++i) {
    if (sums.places[i] < 0 || sums.places[i] >= sums.size) Py_RETURN_FALSE;
  }
  sums.batch = std::max<int64_t>(1, kTask / sums.count);
  in_threads(type == NPY_FLOAT ? Sums::run<float> : Sums::run<double>, &sums,
             (sums.rows + sums.batch - 1) / sums.batch, total);
  Py_RETURN_TRUE;
}

bool prepare_pooling() { return PyArray_ImportNumPyAPI() >= 0; }

}  // namespace tensorplay

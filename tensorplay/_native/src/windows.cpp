// Convolutions of arrays in C order, in float32 and float64.
//
// What the windows see is laid out for a few of them at a time, as wide as two vectors, where the
// first cache holds it; its products with all filters follow at once. The adjoint in the weight needs
// no such layout: for each place of the kernel the elements that it meets are read where they lie.
// Images are cut into tasks that do not depend on each other, so that neither threads nor the rest of
// a batch change a result.
#include "windows.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "launch.h"
#include "vectors.h"

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL tensorplay_windows_array_api
#include <numpy/arrayobject.h>

namespace tensorplay {

#if defined(__GNUC__)

namespace {

constexpr int64_t kDepth = 384;          // products of a tile before it goes back to memory
constexpr int64_t kTaskWork = 1 << 19;   // multiplications of a task, if there are as many
constexpr int64_t kWithoutThreads = 1 << 17;
constexpr int64_t kWithInterpreter = 1 << 15;
constexpr int64_t kTasks = 16;           // that a sum over the batch is cut into

// Sizes of a convolution; dimensions that there are not come first and have one element.
struct Geometry {
  int64_t batch, groups, channels, filters;  // of one group
  int64_t size[3], kernel[3], counts[3], stride[3], padding[3], dilation[3];
  int64_t windows, depth, area;  // results of a channel, products of a result, elements of a channel

  void finish() {
    windows = counts[0] * counts[1] * counts[2];
    depth = channels * kernel[0] * kernel[1] * kernel[2];
    area = size[0] * size[1] * size[2];
  }
};

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <typename T>
inline void copy_few(T* to, const T* from, int64_t count) {
  for (; count >= 16; count -= 16, to += 16, from += 16) std::memcpy(to, from, 16 * sizeof(T));
  if (count & 8) {
    std::memcpy(to, from, 8 * sizeof(T));
    to += 8, from += 8;
  }
  if (count & 4) {
    std::memcpy(to, from, 4 * sizeof(T));
    to += 4, from += 4;
  }
  if (count & 2) {
    std::memcpy(to, from, 2 * sizeof(T));
    to += 2, from += 2;
  }
  if (count & 1) *to = *from;
}

// Images with the zeros around them, and where in them windows and places of the kernel lie.
template <typename T>
struct Images {
  const Geometry* g;
  const T* x;
  T* padded;  // null where there is no padding: `x` itself is read
  int64_t full[3], area, origin;

  explicit Images(const Geometry& geometry, const T* array) : g(&geometry), x(array), padded(nullptr) {
    area = 1;
    origin = 0;
    for (int d = 0; d < 3; ++d) {
      // A negative padding leaves elements out, as adjoints need it.
      full[d] = g->size[d] + 2 * std::max<int64_t>(g->padding[d], 0);
      area *= full[d];
      origin = origin * full[d] + std::max<int64_t>(-g->padding[d], 0);
    }
  }

  bool pads() const { return area != g->area; }
  int64_t count() const { return pads() ? g->batch * g->groups * g->channels * area : 1; }

  const T* of(int64_t image) const {
    return (padded != nullptr ? padded : x) + image * g->channels * area + origin;
  }

  int64_t window(int64_t z, int64_t y, int64_t w) const {
    return (z * g->stride[0] * full[1] + y * g->stride[1]) * full[2] + w * g->stride[2];
  }

  int64_t place(int64_t k) const {
    int64_t places = g->kernel[0] * g->kernel[1] * g->kernel[2], place = k % places;
    int64_t kx = place % g->kernel[2], ky = place / g->kernel[2] % g->kernel[1];
    int64_t kz = place / g->kernel[2] / g->kernel[1];
    return k / places * area +
           (kz * g->dilation[0] * full[1] + ky * g->dilation[1]) * full[2] + kx * g->dilation[2];
  }

  void pad(int64_t image) const {
    const Geometry& s = *g;
    int64_t before[3];
    for (int d = 0; d < 3; ++d) before[d] = std::max<int64_t>(s.padding[d], 0);
    T* target = padded + image * s.channels * area;
    const T* source = x + image * s.channels * s.area;
    std::fill(target, target + s.channels * area, T{0});
    for (int64_t c = 0; c < s.channels; ++c) {
      for (int64_t z = 0; z < s.size[0]; ++z) {
        for (int64_t y = 0; y < s.size[1]; ++y, source += s.size[2]) {
          int64_t row = (z + before[0]) * full[1] + y + before[1];
          copy_few(target + c * area + row * full[2] + before[2], source, s.size[2]);
        }
      }
    }
  }

  static void run(void* context, int64_t image) { static_cast<Images*>(context)->pad(image); }
};

// What `width` windows see, products k0 to k1 of each, as [k][width].
template <typename T>
class Panel {
 public:
  Panel(const Images<T>& images, int64_t width) : images_(images), width_(width) {}

  void move_to(int64_t start) {
    const Geometry& g = *images_.g;
    runs_.clear();
    int64_t end = std::min(start + width_, g.windows);
    for (int64_t n = start; n < end;) {
      int64_t x = n % g.counts[2], row = n / g.counts[2];
      int64_t length = std::min(g.counts[2] - x, end - n);
      runs_.push_back(
          {images_.window(row / g.counts[1], row % g.counts[1], x), length, n - start});
      n += length;
    }
    used_ = end - start;
  }

  void fill(const T* image, const int64_t* offsets, int64_t depth, T* out) const {
    int64_t s = images_.g->stride[2];
    for (int64_t k = 0; k < depth; ++k, out += width_) {
      for (const Run& run : runs_) {
        const T* from = image + run.from + offsets[k];
        T* to = out + run.at;
        if (s == 1) {
          copy_few(to, from, run.length);
        } else {
          for (int64_t j = 0; j < run.length; ++j) to[j] = from[j * s];
        }
      }
      for (int64_t j = used_; j < width_; ++j) out[j] = T{0};
    }
  }

  int64_t used() const { return used_; }

 private:
  // Windows next to each other in one row.
  struct Run {
    int64_t from, length, at;
  };
  const Images<T>& images_;
  int64_t width_, used_ = 0;
  std::vector<Run> runs_;
};

// Memory between parts of a call, on a cache line.
template <typename T>
class Block {
 public:
  explicit Block(int64_t count) : at_(take_block(static_cast<size_t>(count) * sizeof(T) + 64)) {}
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() {
    if (at_ != nullptr) give_block(at_);
  }
  explicit operator bool() const { return at_ != nullptr; }
  T* get() const {
    auto address = reinterpret_cast<uintptr_t>(at_);
    return reinterpret_cast<T*>(address + (64 - address % 64) % 64);
  }

 private:
  void* at_;
};

// --- the convolution ------------------------------------------------------------------------------

template <typename T>
struct Forward {
  const Geometry* g;
  const Tiles<T>* tiles;
  const Images<T>* images;
  const int64_t* offsets;  // of every product
  const T* filters;        // [group][block][depth][rows]
  T* out;
  int64_t rows, blocks, panels, chunk, chunks;

  static void run(void* context, int64_t number) {
    static_cast<Forward*>(context)->work(number);
  }

  int64_t at(int64_t n) const {
    int64_t row = n / g->counts[2];
    return images->window(row / g->counts[1], row % g->counts[1], n % g->counts[2]);
  }

  void work(int64_t number) const {
    const Geometry& s = *g;
    int64_t part = number % chunks, image = number / chunks;  // of one group of channels
    int64_t group = image % s.groups;
    int64_t width = 2 * tiles->lanes, deep = std::min(s.depth, kDepth);
    T* memory = static_cast<T*>(
        thread_memory(static_cast<size_t>((deep + rows) * width) * sizeof(T)));
    T* edge = memory + deep * width;
    const T* source = images->of(image);
    const T* factors = filters + group * blocks * rows * s.depth;
    T* target = out + image * s.filters * s.windows;
    Panel<T> panel(*images, width);
    auto multiply = tiles->multiply[rows];
    auto multiply_there = tiles->multiply_there[rows];
    // Vectors that are parts of rows are read where they lie.
    bool there = s.stride[2] == 1 && s.counts[2] % tiles->lanes == 0;
    int64_t end = std::min((part + 1) * chunk, panels);
    for (int64_t p = part * chunk; p < end; ++p) {
      if (there && (p + 1) * width <= s.windows) {
        const T *left = source + at(p * width), *right = source + at(p * width + tiles->lanes);
        for (int64_t b = 0; b < blocks; ++b) {
          T* to = target + b * rows * s.windows + p * width;
          int64_t missing = b * rows + rows - s.filters;
          multiply_there(factors + b * s.depth * rows, left, right, offsets,
                         missing > 0 ? edge : to, missing > 0 ? width : s.windows, s.depth);
          for (int64_t r = 0; missing > 0 && r < rows - missing; ++r) {
            std::memcpy(to + r * s.windows, edge + r * width, static_cast<size_t>(width) * sizeof(T));
          }
        }
        continue;
      }
      panel.move_to(p * width);
      for (int64_t k = 0; k < s.depth; k += kDepth) {
        int64_t depth = std::min(kDepth, s.depth - k);
        panel.fill(source, offsets + k, depth, memory);
        for (int64_t b = 0; b < blocks; ++b) {
          const T* chosen = factors + (b * s.depth + k) * rows;
          int64_t left = std::min(rows, s.filters - b * rows), used = panel.used();
          T* to = target + b * rows * s.windows + p * width;
          if (left == rows && used == width) {
            multiply(chosen, memory, to, s.windows, depth, k == 0);
            continue;
          }
          // Beyond the last filter or window there is no room: results go through `edge`.
          for (int64_t r = 0; k > 0 && r < left; ++r) {
            std::memcpy(edge + r * width, to + r * s.windows,
                        static_cast<size_t>(used) * sizeof(T));
          }
          multiply(chosen, memory, edge, width, depth, k == 0);
          for (int64_t r = 0; r < left; ++r) {
            std::memcpy(to + r * s.windows, edge + r * width,
                        static_cast<size_t>(used) * sizeof(T));
          }
        }
      }
    }
  }
};

template <typename T>
bool run_forward(const Geometry& g, const T* x, const T* w, T* out, int level) {
  const Tiles<T>& tiles = tiles_of<T>(level);
  Images<T> images(g, x);
  Block<T> padded(images.count());
  if (!padded) return false;
  if (images.pads()) images.padded = padded.get();
  std::vector<int64_t> offsets;
  for (int64_t k = 0; k < g.depth; ++k) offsets.push_back(images.place(k));
  Forward<T> task{&g, &tiles, &images, offsets.data(), nullptr, out, 0, 0, 0, 0, 0};
  task.blocks = ceil_div(g.filters, tiles.rows);
  task.rows = ceil_div(g.filters, task.blocks);
  Block<T> filters(g.groups * task.blocks * task.rows * g.depth);
  if (!filters) return false;
  T* next = filters.get();
  task.filters = next;
  for (int64_t group = 0; group < g.groups; ++group) {
    for (int64_t b = 0; b < task.blocks; ++b) {
      for (int64_t k = 0; k < g.depth; ++k) {
        for (int64_t r = 0; r < task.rows; ++r) {
          int64_t f = b * task.rows + r;
          *next++ = f < g.filters ? w[(group * g.filters + f) * g.depth + k] : T{0};
        }
      }
    }
  }
  int64_t width = 2 * tiles.lanes, each = width * g.depth * g.filters;
  task.panels = ceil_div(g.windows, width);
  task.chunk = std::clamp<int64_t>(kTaskWork / each, 1, task.panels);
  task.chunks = ceil_div(task.panels, task.chunk);
  int64_t count = g.batch * g.groups;
  bool threads = count * task.panels * each > kWithoutThreads;
  if (images.pads()) run_in_threads(Images<T>::run, &images, count, threads);
  run_in_threads(Forward<T>::run, &task, count * task.chunks, threads);
  return true;
}

// --- its adjoint in the weight --------------------------------------------------------------------

template <typename T>
struct Backward {
  const Geometry* g;
  const Tiles<T>* tiles;
  const T* y;
  const Images<T>* images;
  T* slopes;  // [image of a group][block of filters][window][width]
  T* sums;    // [part][group][block of filters][block of places][rows][width]
  T* out;
  int64_t width, filter_blocks, rows, place_blocks, parts;

  void lay_out(int64_t image) const {
    const Geometry& s = *g;
    const T* from = y + image * s.filters * s.windows;
    T* to = slopes + image * filter_blocks * s.windows * width;
    for (int64_t b = 0; b < filter_blocks; ++b, to += s.windows * width) {
      int64_t count = std::min(width, s.filters - b * width);
      const T* rows_of = from + b * width * s.windows;
      for (int64_t n = 0; n < s.windows; ++n) {
        T* row = to + n * width;
        for (int64_t f = 0; f < count; ++f) row[f] = rows_of[f * s.windows + n];
        for (int64_t f = count; f < width; ++f) row[f] = T{0};
      }
    }
    if (images->pads()) images->pad(image);
  }

  void add_up(int64_t number) const {
    const Geometry& s = *g;
    int64_t block = number % place_blocks, rest = number / place_blocks;
    int64_t filter_block = rest % filter_blocks;
    rest /= filter_blocks;
    int64_t group = rest % s.groups, part = rest / s.groups;
    int64_t offsets[kMostRows];
    for (int64_t r = 0; r < rows; ++r) {
      // Beyond the last place there is none: any will do, nobody reads its sum.
      offsets[r] = images->place(std::min(block * rows + r, s.depth - 1));
    }
    Walk walk;
    std::copy(s.counts, s.counts + 3, walk.counts);
    walk.steps[0] = images->window(1, 0, 0);
    walk.steps[1] = images->window(0, 1, 0);
    walk.steps[2] = images->window(0, 0, 1);
    auto correlate = tiles->correlate[width / tiles->lanes - 1][rows];
    T* sum = sums + number * rows * width;
    std::fill(sum, sum + rows * width, T{0});
    for (int64_t b = s.batch * part / parts; b < s.batch * (part + 1) / parts; ++b) {
      int64_t image = b * s.groups + group;
      correlate(slopes + (image * filter_blocks + filter_block) * s.windows * width,
                images->of(image), offsets, walk, sum);
    }
  }

  void write() const {
    const Geometry& s = *g;
    int64_t tile = rows * width, all = s.groups * filter_blocks * place_blocks * tile;
    for (int64_t f = 0; f < s.groups * s.filters; ++f) {
      int64_t group = f / s.filters, within = f % s.filters;
      const T* from =
          sums + (group * filter_blocks + within / width) * place_blocks * tile + within % width;
      for (int64_t k = 0; k < s.depth; ++k) {
        T total{0};
        for (int64_t part = 0; part < parts; ++part) total += from[part * all + k * width];
        out[f * s.depth + k] = total;
      }
    }
  }
};

template <typename T>
bool run_backward_to_weight(const Geometry& g, const T* y, const T* x, T* out, int level) {
  const Tiles<T>& tiles = tiles_of<T>(level);
  Backward<T> task{};
  task.g = &g;
  task.tiles = &tiles;
  task.y = y;
  task.out = out;
  task.width = g.filters > tiles.lanes ? 2 * tiles.lanes : tiles.lanes;
  task.filter_blocks = ceil_div(g.filters, task.width);
  task.place_blocks = ceil_div(g.depth, tiles.rows);
  task.rows = ceil_div(g.depth, task.place_blocks);
  Images<T> images(g, x);
  task.images = &images;
  int64_t count = g.batch * g.groups;
  int64_t tiles_of_sum = g.groups * task.filter_blocks * task.place_blocks;
  task.parts = std::clamp<int64_t>(ceil_div(kTasks, tiles_of_sum), 1, g.batch);
  Block<T> slopes(count * task.filter_blocks * g.windows * task.width);
  Block<T> padded(images.count());
  Block<T> sums(task.parts * tiles_of_sum * task.rows * task.width);
  if (!slopes || !padded || !sums) return false;
  task.slopes = slopes.get();
  if (images.pads()) images.padded = padded.get();
  task.sums = sums.get();
  bool threads = count * g.windows * g.depth * g.filters > kWithoutThreads;
  run_in_threads([](void* c, int64_t i) { static_cast<Backward<T>*>(c)->lay_out(i); }, &task, count,
                 threads);
  run_in_threads([](void* c, int64_t i) { static_cast<Backward<T>*>(c)->add_up(i); }, &task,
                 task.parts * tiles_of_sum, threads);
  task.write();
  return true;
}

// --- arguments ------------------------------------------------------------------------------------

PyArrayObject* array_of(PyObject* object) {
  if (!PyArray_CheckExact(object)) return nullptr;
  auto* a = reinterpret_cast<PyArrayObject*>(object);
  return PyArray_ISCARRAY_RO(a) ? a : nullptr;
}

bool numbers_of(PyObject* object, int dims, int64_t missing, int64_t* to) {
  for (int d = 0; d < 3 - dims; ++d) to[d] = missing;
  for (int d = 0; d < dims; ++d) {
    Py_ssize_t n = PyNumber_AsSsize_t(PyTuple_GET_ITEM(object, d), PyExc_OverflowError);
    if (n == -1 && PyErr_Occurred()) return false;
    to[3 - dims + d] = n;
  }
  return true;
}

// Reads (first, second, out, stride, padding, dilation, groups, level), where two of the arrays are
// given as those of the convolution's input, weight and result. Sets `fits` to whether they can be
// computed here.
struct Call {
  PyArrayObject *first, *second, *out;
  Geometry g;
  int level = -1, type = 0;

  bool read(PyObject* args, int input, int weight, int result, bool* fits) {
    PyObject *objects[3], *stride, *padding, *dilation;
    Py_ssize_t groups;
    *fits = false;
    if (!PyArg_ParseTuple(args, "OOOO!O!O!n|i", &objects[0], &objects[1], &objects[2],
                          &PyTuple_Type, &stride, &PyTuple_Type, &padding, &PyTuple_Type, &dilation,
                          &groups, &level)) {
      return false;
    }
    PyArrayObject* arrays[3];
    for (int i = 0; i < 3; ++i) {
      arrays[i] = array_of(objects[i]);
      if (arrays[i] == nullptr) return true;
    }
    first = arrays[0], second = arrays[1], out = arrays[2];
    type = PyArray_TYPE(out);
    int dims = PyArray_NDIM(out) - 2;
    if ((type != NPY_FLOAT && type != NPY_DOUBLE) || dims < 1 || dims > 3 || groups < 1) return true;
    for (PyArrayObject* a : arrays) {
      if (PyArray_TYPE(a) != type || PyArray_NDIM(a) != dims + 2 || PyArray_SIZE(a) == 0) return true;
    }
    for (PyObject* numbers : {stride, padding, dilation}) {
      if (PyTuple_GET_SIZE(numbers) != dims) return true;
    }
    const npy_intp* x = PyArray_DIMS(arrays[input]);
    const npy_intp* w = PyArray_DIMS(arrays[weight]);
    const npy_intp* y = PyArray_DIMS(arrays[result]);
    if (!PyArray_ISWRITEABLE(out) || !numbers_of(stride, dims, 1, g.stride) ||
        !numbers_of(padding, dims, 0, g.padding) || !numbers_of(dilation, dims, 1, g.dilation)) {
      return !PyErr_Occurred();
    }
    g.batch = x[0];
    g.groups = groups;
    g.channels = x[1] / groups;
    g.filters = w[0] / groups;
    if (y[0] != x[0] || y[1] != w[0] || x[1] != w[1] * groups || w[0] % groups != 0) return true;
    for (int d = 0; d < 3; ++d) {
      int from = d - (3 - dims);
      g.size[d] = from < 0 ? 1 : x[2 + from];
      g.kernel[d] = from < 0 ? 1 : w[2 + from];
      g.counts[d] = from < 0 ? 1 : y[2 + from];
      if (g.stride[d] < 1 || g.dilation[d] < 1) return true;
      int64_t room = g.size[d] + 2 * g.padding[d] - g.dilation[d] * (g.kernel[d] - 1) - 1;
      if (room < 0 || g.counts[d] != room / g.stride[d] + 1) return true;
    }
    g.finish();
    if (level < 0 || level > best_level()) level = best_level();
    *fits = true;
    return true;
  }

  bool is_large() const {
    return g.batch * g.groups * g.windows * g.depth * g.filters > kWithInterpreter;
  }
};

template <typename T>
T* data_of(PyArrayObject* a) {
  return static_cast<T*>(PyArray_DATA(a));
}

}  // namespace

PyObject* convolve(PyObject*, PyObject* args) {
  Call call;
  bool fits = false;
  if (!call.read(args, 0, 1, 2, &fits)) return nullptr;
  if (!fits) Py_RETURN_FALSE;
  PyThreadState* state = call.is_large() ? PyEval_SaveThread() : nullptr;
  bool done = call.type == NPY_FLOAT
                  ? run_forward(call.g, data_of<float>(call.first), data_of<float>(call.second),
                                data_of<float>(call.out), call.level)
                  : run_forward(call.g, data_of<double>(call.first), data_of<double>(call.second),
                                data_of<double>(call.out), call.level);
  if (state != nullptr) PyEval_RestoreThread(state);
  return PyBool_FromLong(done);
}

PyObject* correlate(PyObject*, PyObject* args) {
  Call call;
  bool fits = false;
  if (!call.read(args, 1, 2, 0, &fits)) return nullptr;
  if (!fits) Py_RETURN_FALSE;
  PyThreadState* state = call.is_large() ? PyEval_SaveThread() : nullptr;
  bool done =
      call.type == NPY_FLOAT
          ? run_backward_to_weight(call.g, data_of<float>(call.first), data_of<float>(call.second),
                                   data_of<float>(call.out), call.level)
          : run_backward_to_weight(call.g, data_of<double>(call.first),
                                   data_of<double>(call.second), data_of<double>(call.out),
                                   call.level);
  if (state != nullptr) PyEval_RestoreThread(state);
  return PyBool_FromLong(done);
}

PyObject* tile_levels(PyObject*, PyObject*) { return PyLong_FromLong(best_level() + 1); }

#else  // without vectors of the compiler NumPy computes

PyObject* convolve(PyObject*, PyObject*) { Py_RETURN_FALSE; }
PyObject* correlate(PyObject*, PyObject*) { Py_RETURN_FALSE; }
PyObject* tile_levels(PyObject*, PyObject*) { return PyLong_FromLong(0); }

#endif

bool prepare_windows() { return PyArray_ImportNumPyAPI() >= 0; }

}  // namespace tensorplay

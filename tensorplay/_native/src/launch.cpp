// Calls of the kernels that `tensorplay.compiler` writes: from arrays to pointers to rows, with memory
// for the results and with all processors. What a kernel is, `compiler/cpp/codegen.py` says: a plain
// function over one row. `LoopCall` finds the rows of a call, whatever the shapes and strides are.
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION

#include <numpy/arrayobject.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#ifdef __linux__
#include <unistd.h>
#endif

#include "rows.h"

namespace tensorplay {

namespace {

constexpr int64_t kWithoutThreads = 32768;  // elements below which one thread is faster
constexpr int64_t kPastCaches = int64_t{1} << 25;  // bytes of a call whose results nobody finds there
constexpr int64_t kWithInterpreter = 8192;  // elements below which releasing it costs more

PyTypeObject* loop_call_type = nullptr;

// Why a call is left to Python: it returns None.
PyObject* decline() { Py_RETURN_NONE; }

// The order of dimensions in which the operands lie in memory, from outside to inside.
void order_of(const std::vector<PyArrayObject*>& arrays, const std::vector<Operand>& inputs,
              int dims, int* order) {
  for (int d = 0; d < dims; ++d) order[d] = d;
  for (size_t j = 0; j < inputs.size(); ++j) {
    PyArrayObject* a = arrays[j];
    if (PyArray_NDIM(a) != dims || inputs[j].behind) continue;
    const npy_intp* strides = PyArray_STRIDES(a);
    const npy_intp* sizes = PyArray_DIMS(a);
    bool sorted = true;
    for (int d = 0; d + 1 < dims; ++d) {
      sorted = sorted && (sizes[d] == 1 || sizes[d + 1] == 1 ||
                          std::abs(strides[d]) >= std::abs(strides[d + 1]));
    }
    if (!sorted) {
      std::stable_sort(order, order + dims, [&](int a, int b) {
        return std::abs(strides[a]) > std::abs(strides[b]);
      });
    }
    return;  // the first operand of all dimensions decides
  }
}

// Whether two arrays share memory in another way than as the same elements at the same places.
bool overlaps(PyArrayObject* a, PyArrayObject* b) {
  const char *low[2], *high[2];
  bool same = PyArray_BYTES(a) == PyArray_BYTES(b) && PyArray_NDIM(a) == PyArray_NDIM(b);
  int number = 0;
  for (PyArrayObject* x : {a, b}) {
    const char* start = PyArray_BYTES(x);
    const char* end = start + PyArray_ITEMSIZE(x);
    for (int d = 0; d < PyArray_NDIM(x); ++d) {
      npy_intp reach = PyArray_STRIDE(x, d) * (PyArray_DIM(x, d) - 1);
      (reach < 0 ? start : end) += reach;
      same = same && PyArray_DIM(a, d) == PyArray_DIM(b, d) &&
             (PyArray_DIM(a, d) == 1 || PyArray_STRIDE(a, d) == PyArray_STRIDE(b, d));
    }
    low[number] = start;
    high[number++] = end;
  }
  return !same && low[0] < high[1] && low[1] < high[0];
}

// The bytes of the last cache that this processor reaches, 0 where it is not known. The kernel knows;
// the C library counts those of all sockets together on some processors.
int64_t find_last_cache() {
#ifdef __linux__
  if (std::FILE* file = std::fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "r")) {
    long long kibibytes = 0;
    const int found = std::fscanf(file, "%lldK", &kibibytes);
    std::fclose(file);
    if (found == 1 && kibibytes > 0) return kibibytes * 1024;
  }
#ifdef _SC_LEVEL3_CACHE_SIZE
  return std::max<int64_t>(0, sysconf(_SC_LEVEL3_CACHE_SIZE));
#endif
#endif
  return 0;
}

int64_t last_cache() {
  static const int64_t size = find_last_cache();
  return size;
}

// Whether the results are better written past the caches: the call touches more than those hold, and
// each row of a new result begins where a vector may be streamed to.
bool goes_past_caches(const LoopCall& call, const Space& space, const std::vector<Place>& places,
                      bool plain) {
  if (!plain || (call.inner >= 0 && space.length % call.lanes != 0)) return false;
  int64_t bytes = 0;
  for (size_t j = 0; j < places.size(); ++j) {
    const Place& p = places[j];
    if (p.per_row) continue;
    int64_t own = p.size * space.length;
    for (int d = 0; d < space.outer_dims; ++d) own *= p.outer[d] != 0 ? space.outer[d] : 1;
    bytes += own;
    if (!p.is_output) continue;
    if ((*call.outputs)[j - call.inputs->size()].destination >= 0) return false;
    if (reinterpret_cast<uintptr_t>(p.data) % 64 != 0) return false;
    for (int d = 0; d < space.outer_dims; ++d) {
      if (p.outer[d] % 64 != 0) return false;
    }
  }
  // What sweeps over each row several times waits for its stores only where memory is the limit.
  return bytes >= (call.inner >= 0 ? std::max(kPastCaches, last_cache()) : kPastCaches);
}

PyObject* call_loop(PyObject* object, PyObject* const* args, Py_ssize_t given) {
  auto& self = *reinterpret_cast<LoopCall*>(object);
  const auto& inputs = *self.inputs;
  const auto& outputs = *self.outputs;
  const auto& finished = *self.finished;
  std::vector<PyArrayObject*> arrays;
  arrays.reserve(static_cast<size_t>(given));
  for (Py_ssize_t i = 0; i < given; ++i) {
    if (!PyArray_CheckExact(args[i])) return decline();
    auto* a = reinterpret_cast<PyArrayObject*>(args[i]);
    if (!PyArray_ISBEHAVED_RO(a)) return decline();
    arrays.push_back(a);
  }
  if (arrays.size() < inputs.size()) return decline();

  // The space of the call.
  int dims = 0;
  for (size_t j = 0; j < inputs.size(); ++j) {
    if (PyArray_DESCR(arrays[j])->type_num != inputs[j].type->type_num) return decline();
    dims = std::max(dims, PyArray_NDIM(arrays[j]) + inputs[j].behind);
  }
  if (dims > kMaxDims) return decline();
  int64_t shape[kMaxDims];
  std::fill(shape, shape + dims, 1);
  for (size_t j = 0; j < inputs.size(); ++j) {
    int own = PyArray_NDIM(arrays[j]);
    int lead = dims - own - inputs[j].behind;
    for (int d = 0; d < own; ++d) {
      int64_t n = PyArray_DIM(arrays[j], d);
      if (n == 1) continue;
      int64_t& m = shape[lead + d];
      if (m != 1 && m != n) return decline();
      m = n;
    }
  }
  int inner = self.inner < 0 ? dims : self.inner;
  if (inner > dims) return decline();
  int outer = dims - inner;
  int64_t total = 1;
  for (int d = 0; d < dims; ++d) {
    if (shape[d] == 0) return decline();
    total *= shape[d];
  }

  // Results.
  int order[kMaxDims];
  for (int d = 0; d < dims; ++d) order[d] = d;
  bool free = self.inner < 0 && !self.partial;
  for (const Operand& o : inputs) free = free && (!o.per_row || dims < 2);
  if (free) order_of(arrays, inputs, dims, order);
  std::vector<PyArrayObject*> written;
  std::vector<PyObject*> made;
  auto fail = [&]() -> PyObject* {
    for (PyObject* m : made) Py_DECREF(m);
    return PyErr_Occurred() ? nullptr : decline();
  };
  std::vector<const Operand*> stored;
  for (const Operand& o : outputs) {
    if (!(self.partial && o.per_row)) stored.push_back(&o);
  }
  for (const Operand& f : finished) stored.push_back(&f);
  for (const Operand* out : stored) {
    npy_intp size[kMaxDims];
    int count = 0;
    if (out->per_row) {
      for (int d = 0; d < outer; ++d) size[count++] = shape[d];
      if (self.inner < 0) {  // one number for all
        for (int d = 0; d < (out->behind ? dims : 0); ++d) size[count++] = 1;
      } else {
        for (int d = 0; d < (out->behind ? inner : 0); ++d) size[count++] = 1;
      }
    } else {
      for (int d = 0; d < dims; ++d) size[count++] = shape[d];
    }
    if (out->destination >= 0) {
      if (static_cast<size_t>(out->destination) >= arrays.size()) return fail();
      PyArrayObject* a = arrays[static_cast<size_t>(out->destination)];
      bool fits = PyArray_NDIM(a) == count && PyArray_ISWRITEABLE(a) &&
                  PyArray_DESCR(a)->type_num == out->type->type_num;
      for (int d = 0; fits && d < count; ++d) fits = PyArray_DIM(a, d) == size[d];
      for (size_t j = 0; fits && j < inputs.size(); ++j) fits = !overlaps(a, arrays[j]);
      for (PyArrayObject* before : written) fits = fits && before != a && !overlaps(a, before);
      if (!fits) return fail();
      written.push_back(a);
      continue;
    }
    PyObject* a = nullptr;
    Py_INCREF(out->type);
    bool ordered = !out->per_row;
    for (int d = 0; d < dims; ++d) ordered = ordered && order[d] == d;
    if (out->per_row || ordered) {
      a = new_array(count, size, out->type);
    } else {  // as the operands lie
      npy_intp turned[kMaxDims];
      for (int d = 0; d < dims; ++d) turned[d] = size[order[d]];
      PyObject* base = new_array(count, turned, out->type);
      if (base != nullptr) {
        npy_intp back[kMaxDims];
        for (int d = 0; d < dims; ++d) back[order[d]] = d;
        PyArray_Dims permutation = {back, dims};
        a = PyArray_Transpose(reinterpret_cast<PyArrayObject*>(base), &permutation);
        Py_DECREF(base);
      }
    }
    if (a == nullptr) return fail();
    made.push_back(a);
    written.push_back(reinterpret_cast<PyArrayObject*>(a));
  }

  // Where everything lies.
  Space space;
  std::vector<Place> places(inputs.size() + outputs.size());
  auto place = [&](Place& p, PyArrayObject* a, const Operand& operand, int behind, bool is_output) {
    p.data = PyArray_BYTES(a);
    p.size = operand.size;
    p.per_row = operand.per_row;
    p.is_output = is_output;
    int own = PyArray_NDIM(a);
    int lead = dims - own - behind;
    int64_t strides[kMaxDims];
    for (int d = 0; d < dims; ++d) {
      int at = d - lead;
      bool moves = at >= 0 && at < own && PyArray_DIM(a, at) != 1;
      strides[d] = moves ? PyArray_STRIDE(a, at) : 0;
    }
    for (int d = 0; d < outer; ++d) p.outer[d] = strides[d];
    for (int d = 0; d < inner; ++d) p.inner[d] = strides[order[outer + d]];
  };
  for (size_t j = 0; j < inputs.size(); ++j) {
    place(places[j], arrays[j], inputs[j], inputs[j].behind, false);
  }
  size_t next = 0;
  for (size_t k = 0; k < outputs.size(); ++k) {
    Place& p = places[inputs.size() + k];
    if (self.partial && outputs[k].per_row) {
      p = Place{};
      p.size = 8;
      p.per_row = p.is_output = true;
      continue;
    }
    int behind = outputs[k].per_row && !outputs[k].behind ? inner : 0;
    place(p, written[next++], outputs[k], behind, true);
  }
  for (int d = 0; d < outer; ++d) space.outer[d] = shape[d];
  for (int d = 0; d < inner; ++d) space.inner[d] = shape[order[outer + d]];
  int count = static_cast<int>(places.size());
  if (count > kMaxOperands) return fail();
  space.inner_dims = collapse(space.inner, places.data(), count, inner, false);
  if (self.inner < 0) {
    // All but the last run of memory are outer dimensions.
    space.outer_dims = std::max(space.inner_dims - 1, 0);
    for (int d = 0; d < space.outer_dims; ++d) {
      space.outer[d] = space.inner[d];
      for (Place& p : places) p.outer[d] = p.inner[d];
    }
    if (space.inner_dims > 0) {
      space.inner[0] = space.inner[space.inner_dims - 1];
      for (Place& p : places) p.inner[0] = p.inner[space.inner_dims - 1];
      space.inner_dims = 1;
    }
    // An operand that the kernel reads once per row must not move along it.
    bool moves = false;
    for (const Place& p : places) {
      moves = moves || (p.per_row && space.inner_dims && p.inner[0] != 0);
    }
    if (moves) {
      int d = space.outer_dims++;
      space.outer[d] = space.inner[0];
      for (Place& p : places) {
        p.outer[d] = p.inner[0];
        p.inner[0] = 0;
      }
      space.inner_dims = 0;
    }
  } else {
    space.outer_dims = collapse(space.outer, places.data(), count, outer, true);
    for (const Place& p : places) {
      if (!p.per_row) continue;
      for (int d = 0; d < space.inner_dims; ++d) {
        if (p.inner[d] != 0) return fail();
      }
    }
  }
  for (int d = 0; d < space.outer_dims; ++d) space.rows *= space.outer[d];
  for (int d = 0; d < space.inner_dims; ++d) space.length *= space.inner[d];
  Task task{};
  task.plain = true;
  for (Place& p : places) {
    p.plain = p.per_row || space.inner_dims == 0 ||
              (space.inner_dims == 1 && p.inner[0] == p.size);
    // One element is a run, wherever it lies.
    task.plain = task.plain && p.plain;
  }
  task.streams = goes_past_caches(self, space, places, task.plain);
  task.call = &self;
  task.space = &space;
  task.places = places.data();
  task.count = count;
  bool cuts = self.inner < 0;
  task.piece = cuts ? std::min(space.length, kPiece) : space.length;
  task.pieces = cuts ? (space.length + task.piece - 1) / task.piece : 1;
  int64_t pairs = space.rows * task.pieces;
  // Short rows are taken several at a time.
  task.batch = std::max<int64_t>(1, kPiece / std::max<int64_t>(task.piece, 1));
  int64_t room = (space.length + self.lanes - 1) / self.lanes * self.lanes;
  int64_t packed_row = cuts ? (self.partial ? task.piece : kTile) : space.length;
  packed_row = (packed_row + self.lanes - 1) / self.lanes * self.lanes;
  task.buffer_bytes = room * (cuts ? 0 : self.scratch) + 64;
  bool packs = !task.plain || task.piece % self.lanes || space.length % self.lanes;
  if (packs) {
    for (const Place& p : places) task.buffer_bytes += packed_row * p.size + 64;
  } else if (self.scratch == 0) {
    task.buffer_bytes = 0;
  }
  std::vector<char> partials;
  size_t partial_outputs = 0;
  if (self.partial) {
    for (const Operand& o : outputs) partial_outputs += o.per_row;
    task.parts = pairs * 2;
    partials.resize(partial_outputs * static_cast<size_t>(task.parts) * 8);
    task.partials = partials.data();
  }
  int64_t tasks = (pairs + task.batch - 1) / task.batch;
  bool release = total * self.cost > kWithInterpreter;
  PyThreadState* state = release ? PyEval_SaveThread() : nullptr;
  run_in_threads(run_task, &task, tasks, total * self.cost > kWithoutThreads);
  if (self.partial) {
    char* results[kMaxOperands];
    for (size_t k = 0; k < finished.size(); ++k) {
      results[k] = PyArray_BYTES(written[written.size() - finished.size() + k]);
    }
    finish_parts(task, results, total);
  }
  if (state != nullptr) PyEval_RestoreThread(state);
  PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(made.size()));
  if (tuple == nullptr) return fail();
  for (size_t i = 0; i < made.size(); ++i) {
    PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(i), made[i]);
  }
  return tuple;
}

// --- the type -------------------------------------------------------------------------------------

bool read_operands(PyObject* list, std::vector<Operand>& found) {
  Py_ssize_t n = PyTuple_Size(list);
  if (n < 0) return false;
  for (Py_ssize_t i = 0; i < n; ++i) {
    Operand operand;
    PyObject* type = nullptr;
    int per_row = 0;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(list, i), "Opii", &type, &per_row, &operand.behind,
                          &operand.destination)) {
      return false;
    }
    if (!PyArray_DescrCheck(type)) {
      PyErr_SetString(PyExc_TypeError, "expected NumPy's dtype");
      return false;
    }
    operand.type = reinterpret_cast<PyArray_Descr*>(Py_NewRef(type));
    operand.size = PyDataType_ELSIZE(operand.type);
    operand.per_row = per_row != 0;
    found.push_back(operand);
  }
  return true;
}

void drop(std::vector<Operand>* operands) {
  if (operands == nullptr) return;
  for (Operand& o : *operands) Py_XDECREF(o.type);
  delete operands;
}

void dealloc(PyObject* object) {
  auto* self = reinterpret_cast<LoopCall*>(object);
  drop(self->inputs);
  drop(self->outputs);
  drop(self->finished);
  delete self->numbers;
  Py_XDECREF(self->owner);
  PyTypeObject* type = Py_TYPE(object);
  type->tp_free(object);
  Py_DECREF(type);
}

PyObject* make(PyTypeObject* type, PyObject* args, PyObject*) {
  unsigned long long kernel = 0, finish = 0;
  long long lanes = 0, scratch = 0, cost = 1;
  int inner = 0, partial = 0;
  PyObject *inputs, *outputs, *finished, *numbers, *owner;
  if (!PyArg_ParseTuple(args, "KKLiLpLO!O!O!O!O", &kernel, &finish, &lanes, &inner, &scratch,
                        &partial, &cost, &PyTuple_Type, &inputs, &PyTuple_Type, &outputs,
                        &PyTuple_Type, &finished, &PyTuple_Type, &numbers, &owner)) {
    return nullptr;
  }
  auto* self = reinterpret_cast<LoopCall*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  self->kernel = reinterpret_cast<Kernel>(static_cast<uintptr_t>(kernel));
  self->finish = reinterpret_cast<Finish>(static_cast<uintptr_t>(finish));
  self->lanes = lanes;
  self->inner = inner;
  self->scratch = scratch;
  self->partial = partial != 0;
  self->cost = cost;
  self->inputs = new std::vector<Operand>;
  self->outputs = new std::vector<Operand>;
  self->finished = new std::vector<Operand>;
  self->numbers = new std::vector<double>;
  self->owner = Py_NewRef(owner);
  bool good = read_operands(inputs, *self->inputs) && read_operands(outputs, *self->outputs) &&
              read_operands(finished, *self->finished);
  for (Py_ssize_t i = 0; good && i < PyTuple_GET_SIZE(numbers); ++i) {
    self->numbers->push_back(PyFloat_AsDouble(PyTuple_GET_ITEM(numbers, i)));
    good = !PyErr_Occurred();
  }
  if (good && self->inputs->size() + self->outputs->size() + self->finished->size() >
                  static_cast<size_t>(kMaxOperands)) {
    PyErr_Format(PyExc_ValueError, "expected at most %d operands", kMaxOperands);
    good = false;
  }
  if (!good) {
    Py_DECREF(self);
    return nullptr;
  }
  return reinterpret_cast<PyObject*>(self);
}

PyMethodDef methods[] = {
    {"run", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)(void)>(call_loop)),
     METH_FASTCALL,
     "run(*arrays): the new arrays of the results, or None where Python has to do it: other types, "
     "shapes that do not fit, no elements."},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>(
                    "LoopCall(kernel, finish, lanes, inner, scratch, partial, cost, inputs, outputs, "
                    "finished, numbers, owner): a kernel of the compiler that arrays are passed to.")},
    {Py_tp_new, reinterpret_cast<void*>(make)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_methods, methods},
    {0, nullptr},
};

PyType_Spec spec = {
    "tensorplay._native._core.LoopCall", sizeof(LoopCall), 0, Py_TPFLAGS_DEFAULT, slots,
};

}  // namespace

PyObject* set_threads(PyObject*, PyObject* count) {
  long n = PyLong_AsLong(count);
  if (n == -1 && PyErr_Occurred()) return nullptr;
  if (n < 1 || n > 1024) {
    PyErr_Format(PyExc_ValueError, "expected a number of threads from 1 to 1024, got %ld", n);
    return nullptr;
  }
  set_thread_count(static_cast<int>(n));
  Py_RETURN_NONE;
}

PyObject* get_threads(PyObject*, PyObject*) { return PyLong_FromLong(thread_count()); }

PyObject* memory_kept(PyObject*, PyObject* drop) {
  int wanted = PyObject_IsTrue(drop);
  if (wanted < 0) return nullptr;
  size_t bytes = kept_bytes();
  if (wanted) drop_kept();
  return PyLong_FromSize_t(bytes);
}

bool prepare_launch(PyObject* module) {
  if (PyArray_ImportNumPyAPI() < 0) return false;
  loop_call_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return loop_call_type != nullptr && prepare_memory() &&
         PyModule_AddObjectRef(module, "LoopCall", reinterpret_cast<PyObject*>(loop_call_type)) == 0;
}

}  // namespace tensorplay

// Calls of the short ways with several tensors, first, and other arguments.
#include "quick.h"
#include "ref.h"

namespace tensorplay {
namespace {

class Call {
 public:
  Call(const ShortWay* way, PyObject* const* args)
      : way_(way), args_(args), count_(way->tensors), rest_(args + way->tensors),
        rest_count_(PyTuple_GET_SIZE(way->converters)) {}

  PyObject* run();

 private:
  bool read();
  PyObject* compute();
  bool record(PyObject* out, PyArrayObject* result, PyObject* rest);

  const ShortWay* way_;
  PyObject* const* args_;
  const Py_ssize_t count_;
  PyObject* const* rest_;
  const Py_ssize_t rest_count_;
  Operand operands_[kMostTensors];
  int type_ = -1;
  int needs_ = 0;  // which of them need gradients, as bits
};

// Take the tensors: false for a miss or an error.
bool Call::read() {
  if (!tensor_layout.is(args_[0]) || (type_ = read_tensor(args_[0], operands_[0])) < 0) return false;
  for (Py_ssize_t i = 0; i < count_; ++i) {
    if (args_[i] == Py_None && (way_->optional & 1 << i) != 0) continue;
    const bool integers = (way_->integers & 1 << i) != 0;
    if (i > 0 && (!tensor_layout.is(args_[i]) ||
                  !read_beside(args_[i], type_, integers, operands_[i]))) {
      return false;
    }
    if (operands_[i].tracked) needs_ |= 1 << i;
  }
  return true;
}

PyObject* Call::compute() {
  if (way_->compiled == Compiled::kLinear) {
    PyObject* result =
        compute_linear(type_, operands_[0].array, operands_[1].array, operands_[2].array);
    if (result != nullptr || PyErr_Occurred()) return result;
  }
  Ref arrays = Ref::take(PyTuple_New(count_));
  if (!arrays) return nullptr;
  for (Py_ssize_t i = 0; i < count_; ++i) {
    auto* array = reinterpret_cast<PyObject*>(operands_[i].array);
    PyTuple_SET_ITEM(arrays.get(), i, Py_NewRef(array == nullptr ? Py_None : array));
  }
  Ref others = Ref::take(tuple_of(rest_, rest_count_));
  if (!others) return nullptr;
  PyObject* result =
      PyObject_CallFunctionObjArgs(way_->function, arrays.get(), others.get(), nullptr);
  if (result == nullptr) is_refusal();
  return array_from(result);
}

// Give the result its node, which keeps the other arguments `rest`.
bool Call::record(PyObject* out, PyArrayObject* result, PyObject* rest) {
  const unsigned char saves = way_->saves[needs_];
  Ref sources = Ref::take(PyTuple_New(count_));
  Ref shapes = Ref::take(PyTuple_New(count_));
  Ref args = Ref::take(PyTuple_New(count_ + PyTuple_GET_SIZE(rest)));
  if (!sources || !shapes || !args) return false;
  for (Py_ssize_t i = 0; i < count_; ++i) {
    const Operand& x = operands_[i];
    PyObject* source = x.tracked ? source_of(x.object) : Py_NewRef(Py_None);
    PyObject* shape = x.array == nullptr ? Py_NewRef(Py_None) : shape_of(x.array);
    const bool keeps = (saves & 1 << i) != 0 && x.object != nullptr;
    PyTuple_SET_ITEM(sources.get(), i, source);
    PyTuple_SET_ITEM(shapes.get(), i, shape);
    PyTuple_SET_ITEM(args.get(), i, Py_NewRef(keeps ? x.object : Py_None));
    if (source == nullptr || shape == nullptr) return false;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rest); ++i) {
    PyTuple_SET_ITEM(args.get(), count_ + i, Py_NewRef(PyTuple_GET_ITEM(rest, i)));
  }
  bool keeps = false;
  for (Py_ssize_t i = 0; i < count_; ++i) keeps |= PyTuple_GET_ITEM(args.get(), i) != Py_None;
  Kept kept;
  kept.versions = keeps ? versions_of(args.get(), count_) : Py_NewRef(Py_None);
  if (kept.versions == nullptr) return false;
  kept.sources = sources.give();
  kept.shapes = shapes.give();
  kept.args = args.give();
  kept.out = Py_NewRef(saves & kSavesResult ? reinterpret_cast<PyObject*>(result) : Py_None);
  return tensorplay::record(way_, out, result, type_, kept);
}

PyObject* Call::run() {
  if (!read()) return nullptr;
  Ref result = Ref::take(compute());
  if (!result) return nullptr;
  const int records = wants_record(way_, needs_ != 0);
  if (records < 0) return nullptr;
  Ref rest;
  if (records > 0) {
    const int usual = are_defaults(way_, rest_, rest_count_);
    if (usual < 0) return nullptr;
    rest = usual > 0 ? Ref::share(way_->defaults)
                     : Ref::take(converted(way_, rest_, rest_count_));
    if (!rest) return nullptr;
  }
  auto* array = reinterpret_cast<PyArrayObject*>(result.get());
  Ref out = Ref::take(finish(Py_NewRef(result.get()), type_));
  if (!out || (records > 0 && !record(out.get(), array, rest.get()))) return nullptr;
  return out.give();
}

}  // namespace

PyObject* call_tensors(PyObject* callable, PyObject* const* args, size_t flags, PyObject* names) {
  const ShortWay* way = way_of(callable);
  const Py_ssize_t count = way->tensors + PyTuple_GET_SIZE(way->converters);
  if (!is_plain_call(flags, names, count, count)) return wrong_call(way, args, flags, names);
  PyObject* out = has_detours() ? nullptr : Call(way, args).run();
  return out != nullptr ? out : missed(way, args, flags, names);
}

}  // namespace tensorplay

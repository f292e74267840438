// A call of a kernel whose arguments are tensors, numbers and None, without the engine's Python layer.
//
// What that layer does is done here in the same order: arguments exported, the tensors' allocator
// installed, the lock given back for the call, the result or the error made an object of Python. A
// tensor for a parameter that is a view is described on the stack; for any other it becomes an object.
#include "ffi_abi.h"
#include "ref.h"

namespace tensorplay {
namespace {

constexpr int kMostSizes = 96;  // of all views: their shapes and strides

// The arguments of a call, and what keeps their memory.
class Arguments {
 public:
  Arguments() = default;
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;
  ~Arguments() {
    park_if_over();  // Python is unwinding the stack of a thread that it ends: see exit.cpp
    for (int i = 0; i < arrays_; ++i) Py_DECREF(array_[i]);
    for (int i = 0; i < tensors_; ++i) ffi.release(tensor_[i]);
  }

  enum class Added { kYes, kNo, kFailed };

  Added add(PyObject* value, bool is_view) {
    FfiAny& out = values[count];
    out.padding = 0;
    if (is_tensor(value)) {
      if (is_view) {
        DLTensor* view = &view_[arrays_];
        PyObject* array = view_of(value, view, sizes_ + used_, kMostSizes - used_);
        if (array == nullptr) return PyErr_Occurred() ? Added::kFailed : Added::kNo;
        array_[arrays_++] = array;
        used_ += 2 * view->ndim;
        out.type = kFfiViewPointer;
        out.pointer = view;
      } else {
        DLManagedTensorVersioned* managed = nullptr;
        if (from_object(value, &managed) != 0) return Added::kFailed;
        void* tensor = nullptr;
        if (ffi.tensor_from(managed, 0, 0, &tensor) != 0) {
          managed->deleter(managed);
          PyErr_SetString(PyExc_BufferError, "the engine refused the memory of a tensor");
          return Added::kFailed;
        }
        tensor_[tensors_++] = tensor;
        out.type = kFfiTensor;
        out.pointer = tensor;
      }
      has_tensor = true;
    } else if (value == Py_None) {
      out.type = kFfiNone;
      out.integer = 0;
    } else if (PyBool_Check(value)) {
      out.type = kFfiBool;
      out.integer = value == Py_True;
    } else if (PyLong_CheckExact(value)) {
      int overflow = 0;
      out.type = kFfiInt;
      out.integer = PyLong_AsLongLongAndOverflow(value, &overflow);
      if (overflow != 0) return Added::kNo;
    } else if (PyFloat_CheckExact(value)) {
      out.type = kFfiFloat;
      out.real = PyFloat_AS_DOUBLE(value);
    } else {
      return Added::kNo;
    }
    ++count;
    return Added::kYes;
  }

  FfiAny values[kMostDirectArguments];
  int count = 0;
  bool has_tensor = false;

 private:
  DLTensor view_[kMostDirectArguments];
  int64_t sizes_[kMostSizes];
  PyObject* array_[kMostDirectArguments];
  void* tensor_[kMostDirectArguments];
  int arrays_ = 0;
  int tensors_ = 0;
  int used_ = 0;
};

// Raise what a call that failed left behind.
PyObject* raise() {
  PyObject *kind, *value, *traceback;
  PyErr_Fetch(&kind, &value, &traceback);
  void* error = nullptr;
  ffi.take_error(&error);
  if (kind != nullptr) {  // Python's own, such as an interrupt, of which the engine's tells nothing
    if (error != nullptr) ffi.release(error);
    PyErr_Restore(kind, value, traceback);
    return nullptr;
  }
  FfiAny any{kFfiError, 0, {0}};
  any.pointer = error;
  const Ref object = Ref::take(given(any));
  const Ref made =
      Ref::take(object ? PyObject_CallMethod(object.get(), "py_error", nullptr) : nullptr);
  if (made) PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.get())), made.get());
  return nullptr;
}

// Return a tensor of a kernel as one of the runtime, or as the engine's where it has no such tensors.
PyObject* tensor_of(const FfiAny& result) {
  DLManagedTensorVersioned* managed = nullptr;
  if (ffi.tensor_to(result.pointer, &managed) != 0) {
    raise();
    ffi.release(result.pointer);
    return nullptr;
  }
  if (managed->dl_tensor.device.device_type != kDLCPU || !is_known(managed->dl_tensor.dtype)) {
    managed->deleter(managed);
    return given(result);
  }
  void* made = nullptr;
  if (to_object(managed, &made) != 0) managed->deleter(managed);
  ffi.release(result.pointer);
  return static_cast<PyObject*>(made);
}

PyObject* object_of(const FfiAny& result) {
  switch (result.type) {
    case kFfiNone: Py_RETURN_NONE;
    case kFfiBool: return PyBool_FromLong(result.integer != 0);
    case kFfiInt: return PyLong_FromLongLong(result.integer);
    case kFfiFloat: return PyFloat_FromDouble(result.real);
    case kFfiTensor: return tensor_of(result);
    default: return given(result);
  }
}

}  // namespace

PyObject* call_directly(const DirectCall& how, PyObject* args, bool* taken) {
  if (how.function == nullptr || ffi.call == nullptr) return nullptr;
  FfiAny result{kFfiNone, 0, {0}};
  int failed = 0;
  {
    Arguments arguments;
    const Py_ssize_t count = PyTuple_GET_SIZE(args);
    for (Py_ssize_t i = 0; i < count; ++i) {
      const bool is_view = (how.views >> i & 1) != 0;
      const Arguments::Added added = arguments.add(PyTuple_GET_ITEM(args, i), is_view);
      if (added == Arguments::Added::kYes) continue;
      *taken = added == Arguments::Added::kFailed;
      return nullptr;
    }
    *taken = true;
    DLAllocator before = nullptr;
    const bool replaces = arguments.has_tensor && ffi.allocator() != allocate;
    if (replaces && ffi.set_allocator(allocate, 0, &before) != 0) return raise();
    PyThreadState* state = PyEval_SaveThread();
    failed = ffi.call(how.function, arguments.values, arguments.count, &result);
    PyEval_RestoreThread(state);
    if (replaces) ffi.set_allocator(before, 0, nullptr);
  }
  if (failed != 0) return raise();
  if (PyErr_Occurred()) {  // an interrupt that the kernel asked about, and went on nevertheless
    if (result.type >= kFfiObjects) ffi.release(result.pointer);
    return nullptr;
  }
  return object_of(result);
}

}  // namespace tensorplay

// Objects of the engine that own Python objects, and the end of the interpreter.
//
// C++ may hold such an object longer than there is an interpreter: in a static variable, which is
// destroyed as the process ends, or in a thread that goes on until then. The engine's deleter would ask
// for the interpreter's lock, and its functions for an interpreter to run in, both of which end the
// process with a fault. Objects that pass through `hold` have a deleter of ours before the engine's,
// which leaves them to the system once the interpreter is going, and functions refuse to be called.
#include <atomic>

#include "ffi_abi.h"

namespace tensorplay {
namespace {

// What the engine put into its objects of a kind: one class of C++ for all of a kind.
std::atomic<FfiDeleter> delete_object{nullptr};
std::atomic<FfiDeleter> delete_function{nullptr};
std::atomic<FfiSafeCall> call_function{nullptr};

void delete_held_object(void* self, int flags) {
  if (!interpreter_is_gone()) delete_object.load(std::memory_order_relaxed)(self, flags);
}

void delete_held_function(void* self, int flags) {
  if (!interpreter_is_gone()) delete_function.load(std::memory_order_relaxed)(self, flags);
}

int call_held_function(void* self, const FfiAny* args, int32_t count, FfiAny* result) {
  if (!interpreter_is_gone()) {
    return call_function.load(std::memory_order_relaxed)(self, args, count, result);
  }
  ffi.set_error("RuntimeError", "a Python function cannot be called: the interpreter has ended");
  return -1;
}

}  // namespace

// hold(address, is_sample): a sample is one that Python has just made, of which others are told.
PyObject* hold(PyObject*, PyObject* args) {
  PyObject* address = nullptr;
  int is_sample = 0;
  if (!PyArg_ParseTuple(args, "O!p", &PyLong_Type, &address, &is_sample)) return nullptr;
  auto* object = static_cast<FfiObject*>(PyLong_AsVoidPtr(address));
  if (object == nullptr) {
    if (PyErr_Occurred()) return nullptr;
    Py_RETURN_NONE;
  }
  if (object->type == kFfiPythonObject) {
    if (is_sample) delete_object.store(object->deleter);
    if (object->deleter == delete_object.load()) object->deleter = delete_held_object;
  } else if (object->type == kFfiFunction) {
    auto* function = reinterpret_cast<FfiFunction*>(object);
    if (is_sample) {
      delete_function.store(object->deleter);
      call_function.store(function->call);
    }
    if (object->deleter == delete_function.load() && function->call == call_function.load()) {
      object->deleter = delete_held_function;
      function->call = call_held_function;
    }
  }
  Py_RETURN_NONE;
}

}  // namespace tensorplay

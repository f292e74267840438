// Objects of the engine that own Python objects, and the end of the interpreter.
//
// C++ may hold such an object longer than there is an interpreter: in a static variable, which is
// destroyed as the process ends, or in a thread that goes on until then. The engine's deleter would ask
// for the interpreter's lock, and its functions for an interpreter to run in, both of which end the
// process with a fault. Objects that are held have a deleter of ours before the engine's, which leaves
// them to the system once the interpreter is going, and functions refuse to be called. The engine's
// Python layer makes all of its own by two functions of the engine's library; where it calls ours in
// their place, its objects are held from the start, whoever asks for them and wherever they go. Others
// are held as they pass through `hold`.
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

void hold_object(FfiObject* object) {
  if (object->deleter == delete_object.load()) object->deleter = delete_held_object;
}

void hold_function(FfiFunction* function) {
  if (function->object.deleter == delete_function.load()) {
    function->object.deleter = delete_held_function;
  }
  if (function->call == call_function.load()) function->call = call_held_function;
}

int create_held_object(void* owned, int32_t type, FfiRelease release, void** out) {
  const int failed = ffi.create_object(owned, type, release, out);
  if (failed == 0 && type == kFfiPythonObject) hold_object(static_cast<FfiObject*>(*out));
  return failed;
}

// Some call C++ and own a Python object beside it: those do go on being called.
int create_held_function(void* owned, FfiSafeCall call, FfiRelease release, void** out) {
  const int failed = ffi.create_function(owned, call, release, out);
  if (failed == 0) hold_function(static_cast<FfiFunction*>(*out));
  return failed;
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
    if (is_sample && object->deleter != delete_held_object) delete_object.store(object->deleter);
    hold_object(object);
  } else if (object->type == kFfiFunction) {
    auto* function = reinterpret_cast<FfiFunction*>(object);
    if (is_sample && function->call != call_held_function) {
      delete_function.store(object->deleter);
      call_function.store(function->call);
    }
    // Functions of C++ may have the same class.
    if (function->call == call_function.load()) hold_function(function);
  }
  Py_RETURN_NONE;
}

PyObject* creators(PyObject*, PyObject*) {
  return Py_BuildValue("{s:N,s:N}", "TVMFFIObjectCreateOpaque",
                       PyLong_FromVoidPtr(reinterpret_cast<void*>(&create_held_object)),
                       "TVMFFIFunctionCreate",
                       PyLong_FromVoidPtr(reinterpret_cast<void*>(&create_held_function)));
}

}  // namespace tensorplay

// The engine's binary interface as its C header tells it (tvm/ffi/c_api.h), and those of its functions
// that the extension calls. Declared here, and found through Python when kernels are first used: the
// package installs where the engine is not.
#pragma once

#include "native.h"

namespace tensorplay {

enum FfiType : int32_t {
  kFfiNone = 0,
  kFfiInt = 1,
  kFfiBool = 2,
  kFfiFloat = 3,
  kFfiViewPointer = 7,  // DLTensor*, which nobody holds
  kFfiObjects = 64,     // types from here on are objects, with a count of references
  kFfiError = 67,
  kFfiFunction = 68,
  kFfiTensor = 70,
  kFfiPythonObject = 74,
};

struct FfiAny {
  int32_t type;
  uint32_t padding;  // of short texts their length, else zero
  union {
    int64_t integer;
    double real;
    void* pointer;
  };
};

using FfiSafeCall = int (*)(void* self, const FfiAny* args, int32_t count, FfiAny* result);
using FfiDeleter = void (*)(void* self, int flags);
using FfiRelease = void (*)(void* owned);
using DLAllocator = int (*)(DLTensor*, DLManagedTensorVersioned**, void*, DLSetError);

struct FfiObject {
  uint64_t references;
  int32_t type;
  uint32_t padding;
  FfiDeleter deleter;
};

struct FfiFunction {
  FfiObject object;
  FfiSafeCall call;
  void* cpp_call;
};

struct Ffi {
  int (*call)(void* function, const FfiAny* args, int32_t count, FfiAny* result);
  int (*release)(void* object);
  int (*tensor_from)(DLManagedTensorVersioned* from, int32_t alignment, int32_t contiguous, void**);
  int (*tensor_to)(void* tensor, DLManagedTensorVersioned** out);
  void (*take_error)(void** error);
  void (*set_error)(const char* kind, const char* message);
  DLAllocator (*allocator)();
  int (*set_allocator)(DLAllocator allocator, int everywhere, DLAllocator* before);
  int (*create_object)(void* owned, int32_t type, FfiRelease release, void** out);
  int (*create_function)(void* owned, FfiSafeCall call, FfiRelease release, void** out);
};

extern Ffi ffi;  // null until `configure_ffi`

// ffi.cpp
PyObject* configure_ffi(PyObject* module, PyObject* args);

// Return what a value is in the engine's Python layer, which takes over the value's reference.
PyObject* given(const FfiAny& value);

// direct_call.cpp: a call of a kernel without the engine's Python layer.
constexpr int kMostDirectArguments = 16;  // arguments

struct DirectCall {
  void* function = nullptr;  // the engine's object, held by others; null: there is no such way
  uint32_t views = 0;        // bit i: argument i may be a view, memory that nobody holds
};

// Return the result, or null with an error set. `taken` is false, and nothing has happened, where an
// argument is none of those that go this way.
PyObject* call_directly(const DirectCall& how, PyObject* args, bool* taken);

// held.cpp
PyObject* hold(PyObject* module, PyObject* args);
PyObject* creators(PyObject* module, PyObject*);

}  // namespace tensorplay

// What the parts of the extension share.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "dlpack_abi.h"

namespace tensorplay {

constexpr uint32_t kMajor = 1;
constexpr uint32_t kMinor = 1;
constexpr int kMaxDims = 64;  // NumPy's own limit

// exchange.cpp: tensors out and in.
int from_object(void* object, DLManagedTensorVersioned** out);
int to_object(DLManagedTensorVersioned* tensor, void** out);
// Describe a plain tensor's memory: return its array, a new reference that keeps the memory, or null
// with BufferError set. Of `room` sizes the first `ndim` are the shape, as many more the strides; where
// they do not fit nothing is set and null returned.
PyObject* view_of(PyObject* tensor, DLTensor* out, int64_t* sizes, int room);
PyObject* configure(PyObject* module, PyObject* args);
bool is_tensor(PyObject* object);
// Whether it is a scalar of NumPy, or an array of a class of its own, such as a masked one.
bool is_special_to_numpy(PyObject* object);
bool is_known(DLDataType word);  // one of the types of `configure`; needs no interpreter
bool prepare_exchange();

// allocator.cpp: memory for what kernels return, without the interpreter.
int allocate(DLTensor* prototype, DLManagedTensorVersioned** out, void* context, DLSetError);
int64_t live_allocations();

// guarded.cpp: results between zones of known bytes, while a check watches.
size_t zone_around(size_t bytes);  // 0 where nobody watches
void guard(DLManagedTensorVersioned* made, size_t bytes, size_t zone);
void release_guarded(const DLManagedTensorVersioned* self);
PyObject* guard_results(PyObject* module, PyObject* args);
PyObject* take_damage(PyObject* module, PyObject*);

// call.cpp: the base of Python's `Kernel`.
extern PyTypeObject* call_base_type;
bool prepare_call_base(PyObject* module);

// exit.cpp: what is left of the process when the interpreter ends.
bool interpreter_is_gone();
void park_if_over();  // never returns in another thread than the main one when that is so
PyObject* park_threads_at_exit(PyObject* module, PyObject* args);

// quick_type.cpp: the short ways of small calls.
PyObject* set_short_ways(PyObject* module, PyObject* args);
PyObject* short_way(PyObject* module, PyObject* args, PyObject* kwargs);
bool prepare_short_ways(PyObject* module);

}  // namespace tensorplay

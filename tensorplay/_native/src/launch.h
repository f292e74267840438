// What calls of the compiler's kernels need: threads and memory.
#pragma once

#include "native.h"

typedef struct _PyArray_Descr PyArray_Descr;

namespace tensorplay {

// threads.cpp: call `run(context, i)` for all i below `tasks`, in this thread and, where `helpers` are
// wanted and no other call has them, in those that wait for work. Needs no interpreter. Results must
// not depend on who runs what.
void run_in_threads(void (*run)(void*, int64_t), void* context, int64_t tasks, bool helpers);
int thread_count();
void set_thread_count(int count);

// Memory of this thread for one task of `run_in_threads`, aligned to 64 bytes. What is large is
// given back when the thread has done its tasks.
void* thread_memory(size_t bytes);

// memory.cpp: an uninitialised array in C order; steals the reference to the type. Large ones are
// made of memory that is kept when they are freed, so that its pages are there already.
PyObject* new_array(int dims, const Py_ssize_t* sizes, PyArray_Descr* type);
// Such memory without an array; null if there is none. Needs no interpreter.
void* take_block(size_t bytes);
void give_block(void* at);
// The same memory for what NumPy's functions make while `args[0]` is called with the other arguments.
PyObject* call_keeping(PyObject* module, PyObject* const* args, Py_ssize_t given);
bool prepare_memory();
size_t kept_bytes();
void drop_kept();

// launch.cpp: the type `LoopCall`, and functions of the module.
bool prepare_launch(PyObject* module);
PyObject* set_threads(PyObject* module, PyObject* count);
PyObject* get_threads(PyObject* module, PyObject* none);
PyObject* memory_kept(PyObject* module, PyObject* drop);

}  // namespace tensorplay

// The end of the interpreter while other threads are in kernels.
//
// A daemon thread that comes back from C++ after the interpreter has begun to end is ended by Python
// (PyThread_exit_thread) where it asks for the interpreter's lock. That unwinds its stack, through
// destructors and functions of the engine that must not be left in this way, and C++ then ends the
// process. Such a thread has nothing left to do: it is parked instead, until the process is gone.
#include "native.h"

#include <cstdlib>
#include <exception>

#if defined(_WIN32)
#include <windows.h>
#else
#include <unistd.h>
#endif

namespace tensorplay {
namespace {

std::terminate_handler before = nullptr;

unsigned long main_thread = 0;

[[noreturn]] void park_or_terminate() {
  park_if_over();
  if (before != nullptr) before();
  std::abort();
}

}  // namespace

bool interpreter_is_gone() {
#if PY_VERSION_HEX >= 0x030D0000
  return !Py_IsInitialized() || Py_IsFinalizing();
#else
  return !Py_IsInitialized() || _Py_IsFinalizing();
#endif
}

void park_if_over() {
  if (!interpreter_is_gone() || PyThread_get_thread_ident() == main_thread) return;
  for (;;) {
#if defined(_WIN32)
    Sleep(INFINITE);
#else
    pause();
#endif
  }
}

PyObject* park_threads_at_exit(PyObject*, PyObject*) {
  if (main_thread == 0) {
    PyObject* threading = PyImport_ImportModule("threading");
    PyObject* main = threading ? PyObject_CallMethod(threading, "main_thread", nullptr) : nullptr;
    PyObject* ident = main ? PyObject_GetAttrString(main, "ident") : nullptr;
    const unsigned long found = ident ? PyLong_AsUnsignedLong(ident) : 0;
    Py_XDECREF(threading);
    Py_XDECREF(main);
    Py_XDECREF(ident);
    if (PyErr_Occurred()) return nullptr;
    main_thread = found;
    before = std::set_terminate(park_or_terminate);
  }
  Py_RETURN_NONE;
}

}  // namespace tensorplay

// A reference to a Python object that is given back at the end of its block.
#pragma once

#include <utility>

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace tensorplay {

class Ref {
 public:
  Ref() = default;
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;
  ~Ref() { Py_XDECREF(object_); }

  static Ref take(PyObject* object) { return Ref(object); }  // of a new reference
  static Ref share(PyObject* object) { return Ref(Py_XNewRef(object)); }

  Ref& operator=(Ref&& other) noexcept {
    // What was held goes last: giving it back may run any code.
    PyObject* before = std::exchange(object_, std::exchange(other.object_, nullptr));
    Py_XDECREF(before);
    return *this;
  }

  PyObject* get() const { return object_; }
  PyObject* give() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  explicit Ref(PyObject* object) : object_(object) {}

  PyObject* object_ = nullptr;
};

}  // namespace tensorplay

// The base of Python's `Kernel`: a call that needs nothing but its arguments goes straight to the
// engine. Everything else (keywords, defaults, containers, functions, NumPy's scalars, None where none
// may be, arguments that refuse to be exported, results that are engine objects, errors that have to
// be told in our words) goes to a method of the subclass.
#include "native.h"

namespace tensorplay {

PyTypeObject* call_base_type = nullptr;

namespace {

struct CallBase {
  PyObject_HEAD
  PyObject* function;  // the engine's function, or null: then every call takes the long way
  Py_ssize_t count;    // arguments of a plain call
  bool none_is_plain;
};

PyObject* name_call_slowly = nullptr;
PyObject* name_call_guarded = nullptr;
PyObject* name_explained = nullptr;
PyObject* name_result = nullptr;

// Whether the engine converts a value as a person means it.
bool is_plain(const CallBase* self, PyObject* value) {
  if (is_tensor(value)) return true;
  if (value == Py_None) return self->none_is_plain;
  PyTypeObject* type = Py_TYPE(value);
  constexpr unsigned long containers =
      Py_TPFLAGS_LIST_SUBCLASS | Py_TPFLAGS_TUPLE_SUBCLASS | Py_TPFLAGS_DICT_SUBCLASS;
  return !(type->tp_flags & containers) && type->tp_call == nullptr && !is_numpy_scalar(value);
}

bool is_final(PyObject* value) {
  return value == Py_None || PyBool_Check(value) || PyLong_CheckExact(value) ||
         PyFloat_CheckExact(value) || is_tensor(value);
}

// Go on after the engine raised: with a call that is guarded where an argument refused to be exported,
// for which the kernel has not run; else by raising what the subclass makes of the error.
PyObject* fail(PyObject* object, PyObject* args) {
  const bool refused = PyErr_ExceptionMatches(PyExc_BufferError) != 0;
  if (!refused && !PyErr_ExceptionMatches(PyExc_Exception)) return nullptr;
  PyObject *kind, *error, *traceback;
  PyErr_Fetch(&kind, &error, &traceback);
  PyErr_NormalizeException(&kind, &error, &traceback);
  if (traceback != nullptr) PyException_SetTraceback(error, traceback);
  PyObject* method = refused ? name_call_guarded : name_explained;
  PyObject* made = PyObject_CallMethodObjArgs(object, method, args, error, nullptr);
  Py_XDECREF(kind);
  Py_XDECREF(error);
  Py_XDECREF(traceback);
  if (refused || made == nullptr) return made;
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made)), made);
  Py_DECREF(made);
  return nullptr;
}

PyObject* call(PyObject* object, PyObject* args, PyObject* kwargs) {
  auto* self = reinterpret_cast<CallBase*>(object);
  bool plain = self->function != nullptr && (kwargs == nullptr || PyDict_GET_SIZE(kwargs) == 0) &&
               PyTuple_GET_SIZE(args) == self->count;
  for (Py_ssize_t i = 0; plain && i < self->count; ++i) {
    plain = is_plain(self, PyTuple_GET_ITEM(args, i));
  }
  if (!plain) {
    PyObject* slow = PyObject_GetAttr(object, name_call_slowly);
    if (slow == nullptr) return nullptr;
    PyObject* made = PyObject_Call(slow, args, kwargs);
    Py_DECREF(slow);
    return made;
  }
  // A kernel may run for long, and may drop the last reference to itself.
  PyObject* function = Py_NewRef(self->function);
  PyObject* result = PyObject_Call(function, args, nullptr);
  Py_DECREF(function);
  if (result == nullptr) return fail(object, args);
  if (is_final(result)) return result;
  PyObject* shown = PyObject_CallMethodOneArg(object, name_result, result);
  Py_DECREF(result);
  return shown;
}

PyObject* set_plain_call(PyObject* object, PyObject* args) {
  auto* self = reinterpret_cast<CallBase*>(object);
  PyObject* function = nullptr;
  Py_ssize_t count = 0;
  int none_is_plain = 0;
  if (!PyArg_ParseTuple(args, "Onp", &function, &count, &none_is_plain)) return nullptr;
  Py_INCREF(function);
  Py_XSETREF(self->function, function);
  self->count = count;
  self->none_is_plain = none_is_plain != 0;
  Py_RETURN_NONE;
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(reinterpret_cast<CallBase*>(object)->function);
  return 0;
}

int clear(PyObject* object) {
  Py_CLEAR(reinterpret_cast<CallBase*>(object)->function);
  return 0;
}

void dealloc(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  clear(object);
  type->tp_free(object);
  Py_DECREF(type);
}

PyMethodDef methods[] = {
    {"_set_plain_call", set_plain_call, METH_VARARGS,
     "Set the engine's function, the number of arguments, and whether None may be one."},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>("Base of kernels: plain calls go straight to the engine.")},
    {Py_tp_call, reinterpret_cast<void*>(call)},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_methods, methods},
    {0, nullptr},
};

PyType_Spec spec = {
    "tensorplay._native._core.CallBase",
    sizeof(CallBase),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    slots,
};

}  // namespace

bool prepare_call_base(PyObject* module) {
  name_call_slowly = PyUnicode_InternFromString("_call_slowly");
  name_call_guarded = PyUnicode_InternFromString("_call_guarded");
  name_explained = PyUnicode_InternFromString("_explained");
  name_result = PyUnicode_InternFromString("_result");
  if (!name_call_slowly || !name_call_guarded || !name_explained || !name_result) return false;
  call_base_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return call_base_type != nullptr &&
         PyModule_AddObjectRef(module, "CallBase", reinterpret_cast<PyObject*>(call_base_type)) == 0;
}

}  // namespace tensorplay

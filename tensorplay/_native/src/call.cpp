// The base of Python's `Kernel`: a call that needs nothing but its arguments goes straight to the
// engine, past its Python layer where all are tensors and numbers. Everything else (keywords, defaults, containers, functions, NumPy's scalars, None where none
// may be, arguments that refuse to be exported, results that are engine objects, errors that have to
// be told in our words) goes to a method of the subclass.
#include "ffi_abi.h"

namespace tensorplay {

PyTypeObject* call_base_type = nullptr;

namespace {

struct CallBase {
  PyObject_HEAD
  PyObject* function;  // the engine's function, or null: then every call takes the long way
  Py_ssize_t count;    // arguments of a plain call
  bool none_is_plain;
  DirectCall direct;
};

PyObject* name_call_slowly = nullptr;
PyObject* name_call_guarded = nullptr;
PyObject* name_explained = nullptr;
PyObject* name_result = nullptr;
PyObject* name_dlpack = nullptr;
PyObject* name_exchange = nullptr;

bool has(PyTypeObject* type, PyObject* name) {
  return PyObject_HasAttr(reinterpret_cast<PyObject*>(type), name) != 0;
}

// Whether the engine converts a value as a person means it.
bool is_plain(const CallBase* self, PyObject* value) {
  if (is_tensor(value) || PyLong_CheckExact(value) || PyFloat_CheckExact(value) ||
      PyBool_Check(value) || PyUnicode_CheckExact(value) || PyBytes_CheckExact(value)) {
    return true;
  }
  if (value == Py_None) return self->none_is_plain;
  PyTypeObject* type = Py_TYPE(value);
  constexpr unsigned long containers =
      Py_TPFLAGS_LIST_SUBCLASS | Py_TPFLAGS_TUPLE_SUBCLASS | Py_TPFLAGS_DICT_SUBCLASS;
  if ((type->tp_flags & containers) || type->tp_call != nullptr || is_special_to_numpy(value)) {
    return false;
  }
  // Memory. Objects of the engine's may be none, and of anything else it would make one that owns it.
  return has(type, name_dlpack) || has(type, name_exchange);
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
  bool direct = false;
  PyObject* result = call_directly(self->direct, args, &direct);
  if (!direct) result = PyObject_Call(function, args, nullptr);
  Py_DECREF(function);
  if (result == nullptr) return fail(object, args);
  if (is_final(result)) return result;
  PyObject* shown = PyObject_CallMethodOneArg(object, name_result, result);
  Py_DECREF(result);
  return shown;
}

PyObject* set_plain_call(PyObject* object, PyObject* args) {
  auto* self = reinterpret_cast<CallBase*>(object);
  PyObject *function, *address;
  Py_ssize_t count = 0;
  int none_is_plain = 0;
  unsigned int views = 0;
  if (!PyArg_ParseTuple(args, "OO!npI", &function, &PyLong_Type, &address, &count, &none_is_plain,
                        &views)) {
    return nullptr;
  }
  void* handle = PyLong_AsVoidPtr(address);
  if (handle == nullptr && PyErr_Occurred()) return nullptr;
  Py_INCREF(function);
  Py_XSETREF(self->function, function);
  self->count = count;
  self->none_is_plain = none_is_plain != 0;
  self->direct = {count <= kMostDirectArguments ? handle : nullptr, views};
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
     "Set the engine's function, its address or 0 to always call it through the engine's Python, the "
     "number of arguments, whether None may be one, and which may be views, as bits."},
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
  name_dlpack = PyUnicode_InternFromString("__dlpack__");
  name_exchange = PyUnicode_InternFromString("__dlpack_c_exchange_api__");
  if (!name_dlpack || !name_exchange) return false;
  if (!name_call_slowly || !name_call_guarded || !name_explained || !name_result) return false;
  call_base_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return call_base_type != nullptr &&
         PyModule_AddObjectRef(module, "CallBase", reinterpret_cast<PyObject*>(call_base_type)) == 0;
}

}  // namespace tensorplay

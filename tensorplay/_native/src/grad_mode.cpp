// The base of Python's `no_grad` and its kin: entering and leaving a mode in one step.
//
// In Python an exception from outside, such as KeyboardInterrupt, can arrive inside of `__exit__` before
// the mode is back. Here nothing arrives in between. `tensorplay.autograd.grad_mode` is the reference.
#include <cstdint>

#include "layout.h"
#include "ref.h"

namespace tensorplay {
namespace {

enum Kind : long { kGrad, kInference };

struct Mode {
  PyObject_HEAD
  long kind;
  int wanted;
  PyObject* outer;  // a list with what to go back to, the innermost last
  PyObject* start;  // what to go back to instead of what is when the mode is entered, or null
};

Mode* of(PyObject* object) { return reinterpret_cast<Mode*>(object); }

PyObject* state = nullptr;        // of grad_mode: `enabled` and `inference` of this thread
PyObject* this_thread = nullptr;  // of _tensor: `inference` once more
PyObject* reasons = nullptr;      // the set of detours
PyObject* name_enabled = nullptr;
PyObject* name_inference = nullptr;
PyObject* name_mode = nullptr;
PyObject* text = nullptr;

PyObject* as_bool(bool value) { return Py_NewRef(value ? Py_True : Py_False); }

// What a thread is in, and the detour that it takes for inference mode.
struct Before {
  Ref enabled;
  Ref inference;
  Ref detour;
};

bool set(PyObject* enabled, PyObject* inference) {
  if (PyObject_SetAttr(state, name_enabled, enabled) != 0) return false;
  if (inference == nullptr) return true;
  return PyObject_SetAttr(state, name_inference, inference) == 0 &&
         PyObject_SetAttr(this_thread, name_inference, inference) == 0;
}

// A detour of its own: its number is none that Python gives.
Ref take_detour() {
  static int64_t count = 0;
  Ref number = Ref::take(PyLong_FromLongLong(--count));
  Ref made = number ? Ref::take(PyTuple_Pack(2, text, number.get())) : Ref();
  return made && PySet_Add(reasons, made.get()) == 0 ? std::move(made) : Ref();
}

PyObject* enter(PyObject* object, PyObject*) {
  Mode* self = of(object);
  Ref enabled = Ref::take(PyObject_GetAttr(state, name_enabled));
  Ref inference = Ref::take(PyObject_GetAttr(state, name_inference));
  if (!enabled || !inference) return nullptr;
  const bool infers = inference.get() == Py_True;
  if (self->outer == nullptr && (self->outer = PyList_New(0)) == nullptr) return nullptr;
  Ref entry, detour;
  if (self->kind == kGrad) {
    PyObject* before = self->start == nullptr ? enabled.get() : self->start;
    entry = Ref::take(PyTuple_Pack(3, before, Py_None, Py_None));
  } else {
    detour = self->wanted ? take_detour() : Ref::share(Py_None);
    if (!detour) return nullptr;
    entry = Ref::take(PyTuple_Pack(3, enabled.get(), inference.get(), detour.get()));
  }
  if (!entry || PyList_Append(self->outer, entry.get()) != 0) return nullptr;
  bool wanted = self->wanted != 0;
  if (self->kind == kInference) {
    // Leaving inference mode records again; outside of it nothing changes.
    wanted = !self->wanted && (infers || enabled.get() == Py_True);
  } else {
    wanted = wanted && !infers;
  }
  Ref now = Ref::take(as_bool(wanted));
  Ref mode = self->kind == kGrad ? Ref() : Ref::take(as_bool(self->wanted != 0));
  if (!set(now.get(), mode.get())) return nullptr;
  Py_RETURN_NONE;
}

PyObject* leave(PyObject* object, PyObject* const*, Py_ssize_t) {
  Mode* self = of(object);
  // A finalizer may use what the garbage collector has cleared.
  const Py_ssize_t count = self->outer == nullptr ? 0 : PyList_GET_SIZE(self->outer);
  if (count == 0) {
    PyErr_SetString(PyExc_RuntimeError, "the mode was not entered");
    return nullptr;
  }
  Ref entry = Ref::share(PyList_GET_ITEM(self->outer, count - 1));
  if (PyList_SetSlice(self->outer, count - 1, count, nullptr) != 0) return nullptr;
  PyObject* inference = PyTuple_GET_ITEM(entry.get(), 1);
  PyObject* detour = PyTuple_GET_ITEM(entry.get(), 2);
  if (detour != Py_None && PySet_Discard(reasons, detour) < 0) return nullptr;
  if (!set(PyTuple_GET_ITEM(entry.get(), 0), inference == Py_None ? nullptr : inference)) {
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyObject* set_mode(PyObject* object, PyObject* args) {
  int wanted = 0;
  int inference = 0;
  if (!PyArg_ParseTuple(args, "p|p", &wanted, &inference)) return nullptr;
  of(object)->wanted = wanted;
  of(object)->kind = inference ? kInference : kGrad;
  Py_RETURN_NONE;
}

PyObject* start_from(PyObject* object, PyObject* enabled) {
  Py_XSETREF(of(object)->start, Py_NewRef(enabled));
  Py_RETURN_NONE;
}

// A mode of the class's own kind; given a function, the function with the mode around it.
PyObject* make(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  PyObject* function = Py_None;
  const char* const names[] = {"function", nullptr};
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O", const_cast<char**>(names), &function)) {
    return nullptr;
  }
  Ref wanted = Ref::take(PyObject_GetAttr(reinterpret_cast<PyObject*>(type), name_mode));
  Ref made = wanted ? Ref::take(type->tp_alloc(type, 0)) : Ref();
  if (!made) return nullptr;
  of(made.get())->wanted = wanted.get() == Py_True;
  of(made.get())->outer = PyList_New(0);
  if (of(made.get())->outer == nullptr) return nullptr;
  return function == Py_None ? made.give() : PyObject_CallOneArg(made.get(), function);
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(of(object)->outer);
  Py_VISIT(of(object)->start);
  return 0;
}

int clear(PyObject* object) {
  Py_CLEAR(of(object)->outer);
  Py_CLEAR(of(object)->start);
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
    {"__enter__", enter, METH_NOARGS, "Set the mode."},
    {"__exit__", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(leave)), METH_FASTCALL,
     "Go back to what was before."},
    {"_set_mode", set_mode, METH_VARARGS, 
     "_set_mode(wanted, inference=False): say which mode this is."},
    {"_start_from", start_from, METH_O,
     "_start_from(enabled): go back to this at the end, whatever is when the mode is entered."},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>("Base of the context managers that set a mode of recording.")},
    {Py_tp_new, reinterpret_cast<void*>(make)},
    {Py_tp_methods, methods},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {0, nullptr},
};

PyType_Spec spec = {
    "tensorplay._native._core.GradModeBase",
    sizeof(Mode),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    slots,
};

}  // namespace

PyObject* configure_grad_mode(PyObject*, PyObject* args) {
  PyObject *flags, *thread, *set;
  if (!PyArg_ParseTuple(args, "OOO!", &flags, &thread, &PySet_Type, &set)) return nullptr;
  Py_XSETREF(state, Py_NewRef(flags));
  Py_XSETREF(this_thread, Py_NewRef(thread));
  Py_XSETREF(reasons, Py_NewRef(set));
  Py_RETURN_NONE;
}

bool prepare_grad_mode(PyObject* module) {
  name_enabled = PyUnicode_InternFromString("enabled");
  name_inference = PyUnicode_InternFromString("inference");
  name_mode = PyUnicode_InternFromString("_mode");
  text = PyUnicode_InternFromString("inference mode");
  if (!name_enabled || !name_inference || !name_mode || !text) return false;
  Ref type = Ref::take(PyType_FromSpec(&spec));
  return type && PyModule_AddObjectRef(module, "GradModeBase", type.get()) == 0;
}

}  // namespace tensorplay

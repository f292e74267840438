// Small calls of users' operators: `tensorplay.library.short_way` is the reference.
//
// A call with plain tensors and numbers, one new tensor as result and nothing special switched on.
// Anything else gives `miss` before the kernel runs; what the kernel returned goes to Python's checks if
// it is not plainly a tensor on memory of its own.
#include <cstring>

#include "engine.h"

namespace tensorplay {
namespace {

constexpr Py_ssize_t kMostArguments = 16;

struct OperatorCall {
  PyObject_HEAD
  PyObject* primitive;
  PyObject* kernels;
  PyObject* miss;
  PyObject* kinds;  // a letter for each argument: Tensor, float, int, bool or str
};

PyObject* name_on_cpu = nullptr;
PyObject* name_checks_writes = nullptr;
PyObject* name_shared_counter = nullptr;
PyObject* name_detach = nullptr;
PyObject* name_record_plainly = nullptr;
PyObject* name_record = nullptr;
PyObject* name_checked = nullptr;

OperatorCall* of(PyObject* object) { return reinterpret_cast<OperatorCall*>(object); }

// Take a number or text of a kind, as the kernel gets it. kNo for others.
Answer convert(char kind, PyObject* value, Ref* out) {
  switch (kind) {
    case 'f': {
      if (PyFloat_CheckExact(value)) {
        const double number = PyFloat_AS_DOUBLE(value);
        if (!(-1e300 < number && number < 1e300)) return Answer::kNo;
        *out = Ref::share(value);
        return Answer::kDone;
      }
      if (!PyLong_CheckExact(value)) return Answer::kNo;
      const double number = PyLong_AsDouble(value);
      if (number == -1 && PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_OverflowError)) return Answer::kError;
        PyErr_Clear();
        return Answer::kNo;
      }
      if (!(-1e300 < number && number < 1e300)) return Answer::kNo;
      *out = Ref::take(PyFloat_FromDouble(number));
      return *out ? Answer::kDone : Answer::kError;
    }
    case 'i':
      if (!PyLong_CheckExact(value)) return Answer::kNo;
      break;
    case 'b':
      if (!PyBool_Check(value)) return Answer::kNo;
      break;
    default:
      if (!PyUnicode_CheckExact(value)) return Answer::kNo;
      break;
  }
  *out = Ref::share(value);
  return Answer::kDone;
}

// See that a tensor is plain; its history may have changed through its base.
Answer check_tensor(PyObject* value) {
  const TensorLayout& t = tensor_layout;
  if (!t.is(value) || !is_array(t.array.of(value)) || t.tangent.of(value) != Py_None) {
    return Answer::kNo;
  }
  if (t.base.of(value) == Py_None) return Answer::kDone;
  Ref done = Ref::take(PyObject_CallMethodNoArgs(value, engine_objects.synchronise));
  return done ? Answer::kDone : Answer::kError;
}

// Return a tensor of the kernel's own on the same memory, as `detach` makes it: what a kernel does to
// its shape or flags, the caller does not see.
Ref twin_of(PyObject* tensor) {
  const TensorLayout& t = tensor_layout;
  PyObject* array = t.array.read(tensor);
  PyObject* dtype = array == nullptr ? nullptr : t.dtype.read(tensor);
  Ref counter = dtype == nullptr ? Ref() : Ref::share(t.counter.read(tensor));
  if (!counter) return Ref();
  if (counter.get() == Py_None) {
    counter = Ref::take(PyObject_CallMethodNoArgs(tensor, name_shared_counter));
    if (!counter) return Ref();
  }
  Ref made = Ref::take(
      new_tensor(Py_NewRef(array), Py_NewRef(dtype)));
  if (made) t.counter.put(made.get(), counter.give());
  return made;
}

// The array that owns the memory of another; null if it is foreign memory.
PyArrayObject* owner_of(PyArrayObject* array) {
  PyObject* base = PyArray_BASE(array);
  if (base == nullptr) return array;
  if (!PyArray_CheckExact(base) || PyArray_BASE(as_array(base)) != nullptr) return nullptr;
  return as_array(base);
}

// Whether a result is a tensor on memory of its own: the owner of the result is that of no argument.
bool is_own(PyObject* out, PyObject* args, const char* kinds) {
  const TensorLayout& t = tensor_layout;
  if (!is_plain(out) || t.base.of(out) != Py_None) return false;
  const PyArrayObject* owner = owner_of(as_array(t.array.of(out)));
  if (owner == nullptr) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); ++i) {
    if (kinds[i] != 't') continue;
    PyObject* array = t.array.of(PyTuple_GET_ITEM(args, i));
    if (!is_array(array)) return false;
    const PyArrayObject* other = owner_of(as_array(array));
    if (other == nullptr || other == owner) return false;
  }
  return true;
}

// Let Python check a result, and record the call.
PyObject* finish_slowly(OperatorCall* self, PyObject* given, PyObject* const* inner, PyObject* out,
                        bool records) {
  const Py_ssize_t count = PyTuple_GET_SIZE(given);
  Ref values = Ref::take(PySequence_List(given));
  Ref twins = Ref::take(PyList_New(count));
  if (!values || !twins) return nullptr;
  for (Py_ssize_t i = 0; i < count; ++i) PyList_SET_ITEM(twins.get(), i, Py_NewRef(inner[i]));
  Ref checked = Ref::take(PyObject_CallMethodObjArgs(self->primitive, name_checked, out,
                                                     values.get(), twins.get(), nullptr));
  if (!checked || !records) return checked.give();
  Ref outs = Ref::take(PyTuple_Pack(1, checked.get()));
  if (!outs) return nullptr;
  Ref done = Ref::take(PyObject_CallMethodObjArgs(self->primitive, name_record, values.get(),
                                                  outs.get(), nullptr));
  return done ? checked.give() : nullptr;
}

PyObject* call(PyObject* object, PyObject* args) {
  OperatorCall* self = of(object);
  const TensorLayout& t = tensor_layout;
  const char* kinds = PyBytes_AS_STRING(self->kinds);
  const Py_ssize_t count = PyBytes_GET_SIZE(self->kinds);
  if (!PyTuple_CheckExact(args) || PyTuple_GET_SIZE(args) != count || !is_engine_ready() ||
      has_detours()) {
    return Py_NewRef(self->miss);
  }
  Ref held[kMostArguments];
  PyObject* inner[kMostArguments];
  bool needs = false;
  bool is_given = true;  // whether the arguments are as the kernel takes them
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* value = PyTuple_GET_ITEM(args, i);
    const Answer answer =
        kinds[i] == 't' ? check_tensor(value) : convert(kinds[i], value, &held[i]);
    if (answer == Answer::kError) return nullptr;
    if (answer == Answer::kNo) return Py_NewRef(self->miss);
    if (kinds[i] == 't') {
      needs = needs || t.requires_grad.of(value) == Py_True;
    } else {
      is_given = is_given && held[i].get() == value;
    }
  }
  Ref checks_writes = Ref::take(PyObject_GetAttr(self->primitive, name_checks_writes));
  Ref kernel = Ref::take(PyObject_GetAttr(self->kernels, name_on_cpu));
  if (!checks_writes || !kernel) return nullptr;
  if (checks_writes.get() != Py_False || kernel.get() == Py_None) return Py_NewRef(self->miss);
  Ref given = Ref::share(args);
  if (!is_given) {
    given = Ref::take(PyTuple_New(count));
    if (!given) return nullptr;
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* value = kinds[i] == 't' ? PyTuple_GET_ITEM(args, i) : held[i].get();
      PyTuple_SET_ITEM(given.get(), i, Py_NewRef(value));
    }
  }
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (kinds[i] == 't') held[i] = twin_of(PyTuple_GET_ITEM(args, i));
    if (!held[i]) return nullptr;
    inner[i] = held[i].get();
  }
  Ref out;
  bool records = false;
  {
    NoRecord no_record;
    if (!no_record.begin()) return nullptr;
    records = needs && no_record.was_on();
    out = Ref::take(
        PyObject_Vectorcall(kernel.get(), inner, static_cast<size_t>(count), nullptr));
  }
  if (!out) return nullptr;
  if (!is_own(out.get(), args, kinds)) {
    return finish_slowly(self, given.get(), inner, out.get(), records);
  }
  if (Py_REFCNT(out.get()) > 1) {  // the kernel may keep its tensor; the caller gets another one
    out = Ref::take(PyObject_CallMethodNoArgs(out.get(), name_detach));
    if (!out) return nullptr;
  }
  if (records) {
    Ref done = Ref::take(PyObject_CallMethodObjArgs(self->primitive, name_record_plainly,
                                                    given.get(), out.get(), nullptr));
    if (!done) return nullptr;
  }
  return out.give();
}

PyObject* make(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *kinds, *primitive, *kernels, *miss;
  if (!PyArg_ParseTuple(args, "O!OOO", &PyBytes_Type, &kinds, &primitive, &kernels, &miss)) {
    return nullptr;
  }
  const Py_ssize_t count = PyBytes_GET_SIZE(kinds);
  bool known = count <= kMostArguments;
  for (Py_ssize_t i = 0; known && i < count; ++i) {
    known = std::strchr("tfibs", PyBytes_AS_STRING(kinds)[i]) != nullptr;
  }
  if (!known) {
    PyErr_Format(PyExc_ValueError, "expected at most %zd letters of 'tfibs'", kMostArguments);
    return nullptr;
  }
  PyObject* made = type->tp_alloc(type, 0);
  if (made == nullptr) return nullptr;
  of(made)->kinds = Py_NewRef(kinds);
  of(made)->primitive = Py_NewRef(primitive);
  of(made)->kernels = Py_NewRef(kernels);
  of(made)->miss = Py_NewRef(miss);
  return made;
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(of(object)->primitive);
  Py_VISIT(of(object)->kernels);
  Py_VISIT(of(object)->miss);
  return 0;
}

int clear(PyObject* object) {
  Py_CLEAR(of(object)->primitive);
  Py_CLEAR(of(object)->kernels);
  Py_CLEAR(of(object)->miss);
  return 0;
}

void dealloc(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  clear(object);
  Py_CLEAR(of(object)->kinds);
  type->tp_free(object);
  Py_DECREF(type);
}

PyMethodDef methods[] = {
    {"call", call, METH_O, "call(args): the result of the operator, or `miss` before it ran."},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>("OperatorCall(kinds, primitive, kernels, miss): small calls.")},
    {Py_tp_new, reinterpret_cast<void*>(make)},
    {Py_tp_methods, methods},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {0, nullptr},
};

PyType_Spec spec = {
    "tensorplay._native._core.OperatorCall",
    sizeof(OperatorCall),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    slots,
};

}  // namespace

bool prepare_operator_call(PyObject* module) {
  const std::pair<PyObject**, const char*> names[] = {
      {&name_on_cpu, "on_cpu"},
      {&name_checks_writes, "checks_writes"},
      {&name_shared_counter, "_shared_counter"},
      {&name_detach, "detach"},
      {&name_record_plainly, "record_plainly"},
      {&name_record, "_record"},
      {&name_checked, "checked"},
  };
  for (const auto& [place, text] : names) {
    *place = PyUnicode_InternFromString(text);
    if (*place == nullptr) return false;
  }
  Ref type = Ref::take(PyType_FromSpec(&spec));
  return type && PyModule_AddObjectRef(module, "OperatorCall", type.get()) == 0;
}

}  // namespace tensorplay

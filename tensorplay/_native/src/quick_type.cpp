// What Python sees of the short ways: their type, and the function that makes them.
#define TENSORPLAY_IMPORTS_NUMPY
#include "quick.h"

#include <structmember.h>  // the offsets that a type is told of by its members

#include <cstddef>
#include <cstring>
#include <initializer_list>

namespace tensorplay {
namespace {

PyTypeObject* short_way_type = nullptr;

PyObject* bind(PyObject* self, PyObject* object, PyObject*) {
  if (object == nullptr || object == Py_None) return Py_NewRef(self);
  return PyMethod_New(self, object);
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  auto* way = way_of(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(way->attributes);
  Py_VISIT(way->primitive);
  Py_VISIT(way->function);
  Py_VISIT(way->miss);
  Py_VISIT(way->defaults);
  Py_VISIT(way->plain);
  Py_VISIT(way->converters);
  Py_VISIT(way->again);
  return 0;
}

int clear(PyObject* object) {
  auto* way = way_of(object);
  Py_CLEAR(way->attributes);
  // What a call reads is replaced, not removed: a finalizer may call what is about to go.
  for (PyObject** member : {&way->primitive, &way->function, &way->again}) {
    Py_XSETREF(*member, Py_NewRef(Py_None));
  }
  Py_CLEAR(way->miss);
  return 0;
}

void dealloc(PyObject* object) {
  auto* way = way_of(object);
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  for (PyObject* member : {way->attributes, way->primitive, way->function, way->miss, way->defaults,
                           way->plain, way->converters, way->again}) {
    Py_XDECREF(member);
  }
  type->tp_free(object);
  Py_DECREF(type);
}

PyObject* show(PyObject* object) {
  return PyUnicode_FromFormat("<short way of %R>", way_of(object)->primitive);
}

// By its name: it is one of the methods of a class, and copies of it are itself.
PyObject* reduce(PyObject* object, PyObject*) { return PyObject_GetAttrString(object, "__qualname__"); }

PyMethodDef methods[] = {
    {"__reduce__", reduce, METH_NOARGS, "The name by which it is found again."},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef members[] = {
    {"__dictoffset__", T_PYSSIZET, offsetof(ShortWay, attributes), READONLY, nullptr},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(ShortWay, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyGetSetDef accessors[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>("The short way of an operator: see tensorplay.ops.quick.")},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_descr_get, reinterpret_cast<void*>(bind)},
    {Py_tp_repr, reinterpret_cast<void*>(show)},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {Py_tp_getset, accessors},
    {0, nullptr},
};

PyType_Spec spec = {
    "tensorplay._native._core.ShortWay",
    sizeof(ShortWay),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
        Py_TPFLAGS_METHOD_DESCRIPTOR | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    slots,
};

// --- making them -----------------------------------------------------------------------------

vectorcallfunc call_of(const char* kind) {
  if (std::strcmp(kind, "two") == 0) return call_two;
  if (std::strcmp(kind, "arguments") == 0) return call_arguments;
  if (std::strcmp(kind, "view") == 0) return call_view;
  if (std::strcmp(kind, "write") == 0) return call_write;
  if (std::strcmp(kind, "tensors") == 0) return call_tensors;
  PyErr_Format(PyExc_ValueError, "no kind of short way: %s", kind);
  return nullptr;
}

Compiled compiled_of(const char* name) {
  constexpr struct {
    const char* name;
    Compiled value;
  } known[] = {{"matmul", Compiled::kProduct},
               {"linear", Compiled::kLinear},
               {"relu", Compiled::kRelu},
               {"sum", Compiled::kSum},
               {"mean", Compiled::kMean},
               {"add", Compiled::kScaled},
               {"sub", Compiled::kScaled}};
  for (const auto& entry : known) {
    if (std::strcmp(entry.name, name) == 0) return entry.value;
  }
  return Compiled::kNothing;
}

// Which of the first `count` members are true, as bits.
unsigned char bits_of(PyObject* flags, Py_ssize_t count) {
  unsigned char found = 0;
  for (Py_ssize_t i = 0; flags != nullptr && i < count && i < PyTuple_GET_SIZE(flags); ++i) {
    if (PyTuple_GET_ITEM(flags, i) == Py_True) found |= static_cast<unsigned char>(1 << i);
  }
  return found;
}

}  // namespace

// short_way(kind, primitive, function, *, …): see `quick._compiled`.
PyObject* short_way(PyObject*, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"kind",        "primitive",      "function",  "compiled", "miss",
                                "defaults",    "plain",          "converters", "again",   "saves",
                                "elementwise", "differentiable", "casts",     "shortened", "swaps",
                                "optional",    "integers",       nullptr};
  const char* kind;
  const char* compiled = "";
  PyObject *primitive, *function, *miss = Py_None, *again = Py_None;
  PyObject *defaults = nullptr, *plain = nullptr, *converters = nullptr, *saves = nullptr;
  PyObject *optional = nullptr, *integers = nullptr;
  int elementwise = 0, differentiable = 0, casts = 0, shortened = 0, swaps = 0;
  if (!PyArg_ParseTupleAndKeywords(
          args, kwargs, "sOO|$sOO!O!O!OO!pppppO!O!", const_cast<char**>(names), &kind, &primitive,
          &function, &compiled, &miss, &PyTuple_Type, &defaults, &PyTuple_Type, &plain,
          &PyTuple_Type, &converters, &again, &PyTuple_Type, &saves, &elementwise, &differentiable,
          &casts, &shortened, &swaps, &PyTuple_Type, &optional,
          &PyTuple_Type, &integers)) {
    return nullptr;
  }
  vectorcallfunc call = call_of(kind);
  if (call == nullptr) return nullptr;
  if (element_types[0].dtype == nullptr || tensor_layout.type == nullptr) {
    PyErr_SetString(PyExc_RuntimeError, "set_layout and set_short_ways come first");
    return nullptr;
  }
  const Py_ssize_t tensors = optional == nullptr ? 0 : PyTuple_GET_SIZE(optional);
  if (tensors > kMostTensors) {
    PyErr_Format(PyExc_ValueError, "a short way has at most %zd tensors", kMostTensors);
    return nullptr;
  }
  unsigned char bits[1 << kMostTensors] = {};
  const Py_ssize_t rows = saves == nullptr ? 0 : PyTuple_GET_SIZE(saves);
  for (Py_ssize_t i = 0; i < rows && i < (1 << kMostTensors); ++i) {
    const long value = PyLong_AsLong(PyTuple_GET_ITEM(saves, i));
    if (value == -1 && PyErr_Occurred()) return nullptr;
    bits[i] = static_cast<unsigned char>(value);
  }
  PyObject* nothing = PyTuple_New(0);
  if (nothing == nullptr) return nullptr;
  PyObject* object = short_way_type->tp_alloc(short_way_type, 0);
  if (object == nullptr) {
    Py_DECREF(nothing);
    return nullptr;
  }
  ShortWay* way = way_of(object);
  way->vectorcall = call;
  way->primitive = Py_NewRef(primitive);
  way->function = Py_NewRef(function);
  way->miss = miss == Py_None ? nullptr : Py_NewRef(miss);
  way->defaults = Py_NewRef(defaults == nullptr ? nothing : defaults);
  way->plain = Py_NewRef(plain == nullptr ? nothing : plain);
  way->converters = Py_NewRef(converters == nullptr ? nothing : converters);
  way->again = Py_NewRef(again);
  way->view = call == call_view ? find_view(compiled) : nullptr;
  way->compiled = compiled_of(compiled);
  std::memcpy(way->saves, bits, sizeof bits);
  way->tensors = static_cast<unsigned char>(tensors);
  way->optional = bits_of(optional, tensors);
  way->integers = bits_of(integers, tensors);
  way->elementwise = elementwise != 0;
  way->differentiable = differentiable != 0;
  way->casts = casts != 0;
  way->shortened = shortened != 0;
  way->swaps = swaps != 0;
  const int operands = call == call_arguments ? 1 : 2;
  for (int type = 0; type < 2; ++type) way->loops[type] = find_loop(function, operands, type);
  Py_DECREF(nothing);
  return object;
}

// set_short_ways(types, quietly, versions, patterns, most): what all of them share. `types` is the two
// types that have short ways, `patterns` what a node has of the operand that was a number.
PyObject* set_short_ways(PyObject*, PyObject* args) {
  PyObject *single, *twice, *quietly, *versions, *first, *second;
  Py_ssize_t most;
  if (!PyArg_ParseTuple(args, "(OO)OO(OO)n", &single, &twice, &quietly, &versions, &first, &second,
                        &most)) {
    return nullptr;
  }
  PyObject* const dtypes[] = {single, twice};
  const int numbers[] = {NPY_FLOAT, NPY_DOUBLE};
  for (int i = 0; i < 2; ++i) {
    Py_XSETREF(element_types[i].dtype, Py_NewRef(dtypes[i]));
    element_types[i].number = numbers[i];
    element_types[i].descr = PyArray_DescrFromType(numbers[i]);
  }
  Py_XSETREF(python_quietly, Py_NewRef(quietly));
  Py_XSETREF(python_versions, Py_NewRef(versions));
  Py_XSETREF(first_is_number, Py_NewRef(first));
  Py_XSETREF(second_is_number, Py_NewRef(second));
  most_of_a_small_sum = most;
  Py_RETURN_NONE;
}

bool prepare_short_ways(PyObject* module) {
  if (PyArray_ImportNumPyAPI() < 0 || PyUFunc_ImportUFuncAPI() < 0) return false;
  name_astype = PyUnicode_InternFromString("astype");
  if (name_astype == nullptr || !prepare_quick_arrays() || !prepare_quick_records()) return false;
  short_way_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return short_way_type != nullptr &&
         PyModule_AddObjectRef(module, "ShortWay", reinterpret_cast<PyObject*>(short_way_type)) == 0;
}

}  // namespace tensorplay

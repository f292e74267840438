// Finds the slots of the runtime's classes, and holds what all calls share.
#include "layout.h"

#include <structmember.h>  // PyMemberDef, which Python.h has from 3.12 on

namespace tensorplay {

TensorLayout tensor_layout;
CounterLayout counter_layout;
NodeLayout node_layout;
PrimitiveNodeLayout primitive_node_layout;
PyTypeObject* edge_type = nullptr;
PyObject* grad_state = nullptr;
PyObject* detours = nullptr;

namespace {

PyObject* zero_object = nullptr;
PyObject* name_enabled = nullptr;
PyObject* numbers = nullptr;  // the iterator of sequence numbers, of which there is one

template <size_t N>
bool place_all(Slot* const (&slots)[N], PyTypeObject* type) {
  for (Slot* slot : slots) {
    if (!slot->place(type)) return false;
  }
  return true;
}

// Keep a class for the rest of the process.
void keep(PyTypeObject*& place, PyTypeObject* type) {
  PyTypeObject* before = place;
  place = type;
  Py_INCREF(type);
  Py_XDECREF(before);
}

}  // namespace

bool Slot::place(PyTypeObject* type) {
  if (name == nullptr && (name = PyUnicode_InternFromString(text)) == nullptr) return false;
  PyObject* descriptor = PyObject_GetAttr(reinterpret_cast<PyObject*>(type), name);
  if (descriptor == nullptr) return false;
  const bool is_slot = Py_TYPE(descriptor) == &PyMemberDescr_Type;
  if (is_slot) offset = reinterpret_cast<PyMemberDescrObject*>(descriptor)->d_member->offset;
  Py_DECREF(descriptor);
  if (!is_slot) PyErr_Format(PyExc_TypeError, "expected a slot of %s: %s", type->tp_name, text);
  return is_slot;
}

bool TensorLayout::place(PyTypeObject* of) {
  Slot* const slots[] = {&array,     &base,   &counter,       &dtype,  &grad_fn,
                         &output_nr, &recipe, &requires_grad, &tangent};
  if (!place_all(slots, of)) return false;
  keep(type, of);
  return true;
}

bool CounterLayout::place(PyTypeObject* of) {
  Slot* const slots[] = {&value, &history};
  if (!place_all(slots, of)) return false;
  keep(type, of);
  return true;
}

bool NodeLayout::place(PyTypeObject* of) {
  Slot* const slots[] = {&dtype, &extras, &outputs, &shape, &sources, &sequence};
  if (!place_all(slots, of)) return false;
  keep(type, of);
  return true;
}

bool PrimitiveNodeLayout::place(PyTypeObject* of) {
  Slot* const slots[] = {&args, &counter, &out, &shapes, &versions, &primitive};
  if (!place_all(slots, of)) return false;
  keep(type, of);
  return true;
}

PyObject* zero() { return zero_object; }

int is_recording() {
  PyObject* enabled = PyObject_GetAttr(grad_state, name_enabled);
  if (enabled == nullptr) return -1;
  const int recording = PyObject_IsTrue(enabled);
  Py_DECREF(enabled);
  return recording;
}

PyObject* new_tensor(PyObject* array, PyObject* dtype) {
  const TensorLayout& t = tensor_layout;
  PyObject* made = t.type->tp_alloc(t.type, 0);
  if (made == nullptr) {
    Py_DECREF(array);
    Py_DECREF(dtype);
    return nullptr;
  }
  t.array.fill(made, array);
  t.dtype.fill(made, dtype);
  t.base.fill(made, Py_NewRef(Py_None));
  t.counter.fill(made, Py_NewRef(Py_None));
  t.grad_fn.fill(made, Py_NewRef(Py_None));
  t.output_nr.fill(made, Py_NewRef(zero_object));
  t.recipe.fill(made, Py_NewRef(Py_None));
  t.requires_grad.fill(made, Py_NewRef(Py_False));
  t.tangent.fill(made, Py_NewRef(Py_None));
  return made;
}

PyObject* next_sequence() { return Py_TYPE(numbers)->tp_iternext(numbers); }

PyObject* set_layout(PyObject*, PyObject* args) {
  PyTypeObject *tensor, *counter, *node, *primitive_node, *edge;
  PyObject *iterator, *state, *set;
  if (!PyArg_ParseTuple(args, "O!O!O!O!O!OOO!", &PyType_Type, &tensor, &PyType_Type, &counter,
                        &PyType_Type, &node, &PyType_Type, &primitive_node, &PyType_Type, &edge,
                        &iterator, &state, &PySet_Type, &set)) {
    return nullptr;
  }
  if (!PyIter_Check(iterator) || !PyType_IsSubtype(edge, &PyTuple_Type)) {
    PyErr_SetString(PyExc_TypeError, "expected an iterator of numbers, and a class of tuples");
    return nullptr;
  }
  if (!tensor_layout.place(tensor) || !counter_layout.place(counter) || !node_layout.place(node) ||
      !primitive_node_layout.place(primitive_node)) {
    return nullptr;
  }
  keep(edge_type, edge);
  Py_XSETREF(numbers, Py_NewRef(iterator));
  Py_XSETREF(grad_state, Py_NewRef(state));
  Py_XSETREF(detours, Py_NewRef(set));
  Py_RETURN_NONE;
}

bool prepare_layout() {
  name_enabled = PyUnicode_InternFromString("enabled");
  zero_object = PyLong_FromLong(0);
  return name_enabled != nullptr && zero_object != nullptr;
}

}  // namespace tensorplay

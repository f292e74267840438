// Where the attributes of the runtime's classes lie. A class with `__slots__` keeps each of them at one
// place of its objects, which the member descriptor tells: what Python reads as `tensor._array` is one
// load here. `set_layout` (of the module) finds the places; until then everything here is null.
#pragma once

#include "native.h"

namespace tensorplay {

// An attribute that is a slot. `of` is for objects of the very class, or for subclasses that are known
// to leave the slot alone: another may have a property in its place.
struct Slot {
  const char* text;
  PyObject* name = nullptr;
  Py_ssize_t offset = 0;

  // The place itself: null if the attribute was never set.
  PyObject*& of(PyObject* object) const {
    return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + offset);
  }

  // What is there, borrowed; null with AttributeError if the attribute was never set.
  PyObject* read(PyObject* object) const {
    PyObject* found = of(object);
    if (found == nullptr) PyErr_SetObject(PyExc_AttributeError, name);
    return found;
  }

  // Set the attribute to a new reference, which is taken over.
  void put(PyObject* object, PyObject* value) const {
    PyObject* before = of(object);
    of(object) = value;
    Py_XDECREF(before);
  }

  // The same in an object that was just made, whose slots are null.
  void fill(PyObject* object, PyObject* value) const { of(object) = value; }

  bool place(PyTypeObject* type);  // find where it lies; false with an error set
};

// Whether what a slot holds, which may be nothing, is of the very class.
inline bool is_of(PyObject* object, PyTypeObject* type) {
  return object != nullptr && Py_TYPE(object) == type;
}

// tensorplay._tensor.Tensor
struct TensorLayout {
  PyTypeObject* type = nullptr;
  Slot array{"_array"}, base{"_base"}, counter{"_counter"}, dtype{"_dtype"}, grad_fn{"_grad_fn"},
      output_nr{"_output_nr"}, recipe{"_recipe"}, requires_grad{"_requires_grad"},
      tangent{"_tangent"};

  bool place(PyTypeObject* type);
  bool is(PyObject* object) const { return is_of(object, type); }  // a plain tensor
};

// tensorplay._layout.VersionCounter. Its subclasses `InferenceCounter` and `MovedCounter` are asked by
// attribute: the second has properties in place of the slots.
struct CounterLayout {
  PyTypeObject* type = nullptr;
  Slot value{"value"}, history{"history"};

  bool place(PyTypeObject* type);
  bool is(PyObject* object) const { return is_of(object, type); }
};

// tensorplay.autograd.graph.Node, whose slots lie at these places in every subclass.
struct NodeLayout {
  PyTypeObject* type = nullptr;
  Slot dtype{"_dtype"}, extras{"_extras"}, outputs{"_outputs"}, shape{"_shape"},
      sources{"_sources"}, sequence{"sequence"};

  bool place(PyTypeObject* type);
};

// tensorplay.ops.node.PrimitiveNode: what it has besides.
struct PrimitiveNodeLayout {
  PyTypeObject* type = nullptr;
  Slot args{"_args"}, counter{"_counter"}, out{"_out"}, shapes{"_shapes"}, versions{"_versions"},
      primitive{"primitive"};

  bool place(PyTypeObject* type);
  bool is(PyObject* object) const { return is_of(object, type); }
};

extern TensorLayout tensor_layout;
extern CounterLayout counter_layout;
extern NodeLayout node_layout;
extern PrimitiveNodeLayout primitive_node_layout;

extern PyTypeObject* edge_type;  // tensorplay.autograd.graph.Edge, a named tuple (node, output_nr)
extern PyObject* grad_state;     // tensorplay.autograd.grad_mode.state: `enabled` of this thread
extern PyObject* detours;        // a set; empty means that plain calls may take short ways

// Whether an object is an edge of a graph, which people may make by `tuple.__new__` too.
inline bool is_edge(PyObject* object) {
  return is_of(object, edge_type) && PyTuple_GET_SIZE(object) == 2;
}

PyObject* zero();  // Python's 0, borrowed

inline bool has_detours() { return PySet_GET_SIZE(detours) != 0; }

// Whether operations of this thread are recorded: 1 or 0, -1 with an error set.
int is_recording();

// Return a tensor without history on an array: what Python's `wrap` does where there are no detours.
// Both references are taken over, also on failure; null with an error set.
PyObject* new_tensor(PyObject* array, PyObject* dtype);

// Return the next number of the graph's one sequence as a Python int; null with an error set.
PyObject* next_sequence();

// set_layout(Tensor, VersionCounter, Node, PrimitiveNode, Edge, numbers, grad_state, detours).
PyObject* set_layout(PyObject* module, PyObject* args);
bool prepare_layout();

}  // namespace tensorplay

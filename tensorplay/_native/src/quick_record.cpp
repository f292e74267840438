// Tensors, their nodes and their views, as the short ways make them.
#include "quick.h"

#include <initializer_list>

namespace tensorplay {

PyObject* python_versions = nullptr;

namespace {

PyObject* name_synchronise = nullptr;
PyObject* name_shared_counter = nullptr;
PyObject* name_seen = nullptr;
PyObject* name_inference = nullptr;

bool is_zero(PyObject* number) {  // of the ints that slots hold
  return number == zero() || (number != nullptr && PyObject_IsTrue(number) == 0);
}

PyObject* new_counter() {
  const CounterLayout& c = counter_layout;
  PyObject* made = c.type->tp_alloc(c.type, 0);
  if (made == nullptr) return nullptr;
  c.value.fill(made, Py_NewRef(zero()));
  c.history.fill(made, Py_NewRef(zero()));
  return made;
}

}  // namespace

bool synchronise(PyObject* tensor) {
  const TensorLayout& t = tensor_layout;
  PyObject* counter = t.counter.of(tensor);
  if (counter == Py_None || t.recipe.of(tensor) == Py_None) return true;
  PyObject* base = t.base.of(tensor);
  if (counter != nullptr && counter_layout.is(counter) && base != nullptr && t.is(base) &&
      t.base.of(base) == Py_None) {
    PyObject* seen = PyObject_GetAttr(tensor, name_seen);
    if (seen == nullptr) return false;
    PyObject* history = counter_layout.history.of(counter);
    const int same = history == nullptr ? 0 : PyObject_RichCompareBool(seen, history, Py_EQ);
    Py_DECREF(seen);
    if (same != 0) return same > 0;
  }
  PyObject* done = PyObject_CallMethodNoArgs(tensor, name_synchronise);
  Py_XDECREF(done);
  return done != nullptr;
}

bool is_number(PyObject* object) { return PyFloat_CheckExact(object) || PyLong_CheckExact(object); }

bool is_tracked(PyObject* tensor) {
  return tensor_layout.requires_grad.of(tensor) == Py_True;
}

namespace {

// Take a plain tensor of any type. False for a miss or an error.
bool read_any(PyObject* tensor, Operand& out) {
  const TensorLayout& t = tensor_layout;
  if (t.base.of(tensor) != Py_None && !synchronise(tensor)) return false;
  PyObject* array = t.array.of(tensor);
  if (array == nullptr || !PyArray_CheckExact(array) || t.tangent.of(tensor) != Py_None) {
    return false;
  }
  out.object = tensor;
  out.array = reinterpret_cast<PyArrayObject*>(Py_NewRef(array));
  out.tracked = is_tracked(tensor);
  return true;
}

int type_of(PyObject* tensor) {
  PyObject* dtype = tensor_layout.dtype.of(tensor);
  return dtype == element_types[0].dtype ? 0 : dtype == element_types[1].dtype ? 1 : -1;
}

}  // namespace

int read_tensor(PyObject* tensor, Operand& out) {
  const int type = type_of(tensor);
  return type >= 0 && read_any(tensor, out) ? type : -1;
}

bool read_beside(PyObject* tensor, int type, bool integers, Operand& out) {
  if (!read_any(tensor, out)) return false;
  return integers ? PyArray_ISINTEGER(out.array) : type_of(tensor) == type;
}

PyObject* finish(PyObject* array, int type) {
  return new_tensor(array, Py_NewRef(element_types[type].dtype));
}

PyObject* shape_of(PyArrayObject* array) {
  return PyArray_IntTupleFromIntp(PyArray_NDIM(array), PyArray_DIMS(array));
}

PyObject* source_of(PyObject* tensor) {
  PyObject* node = tensor_layout.grad_fn.read(tensor);
  if (node == nullptr) return nullptr;
  if (node == Py_None) return Py_NewRef(tensor);
  PyObject* number = tensor_layout.output_nr.read(tensor);
  if (number == nullptr) return nullptr;
  if (is_zero(number)) return Py_NewRef(node);
  PyObject* members = PyTuple_Pack(2, node, number);
  PyObject* arguments = members == nullptr ? nullptr : PyTuple_Pack(1, members);
  // Not by a call of the class, which has a constructor in Python.
  PyObject* edge =
      arguments == nullptr ? nullptr : PyTuple_Type.tp_new(edge_type, arguments, nullptr);
  Py_XDECREF(members);
  Py_XDECREF(arguments);
  return edge;
}

PyObject* versions_of(PyObject* args, Py_ssize_t count) {
  bool counted = false;  // whether any tensor has a counter, without which its version is 0
  bool plain = true;
  bool written = false;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* value = PyTuple_GET_ITEM(args, i);
    PyObject* counter = tensor_layout.is(value) ? tensor_layout.counter.read(value) : Py_None;
    if (counter == nullptr) return nullptr;
    if (counter == Py_None) continue;
    counted = true;
    plain = plain && counter_layout.is(counter);
    written = written || (plain && !is_zero(counter_layout.value.of(counter)));
  }
  if (!counted) return Py_NewRef(zero());
  for (Py_ssize_t i = 0; plain && i < count; ++i) {
    PyObject* value = PyTuple_GET_ITEM(args, i);
    if (!tensor_layout.is(value)) continue;
    PyObject* inference = PyObject_GetAttr(value, name_inference);
    if (inference == nullptr) return nullptr;
    plain = inference == Py_False;
    Py_DECREF(inference);
  }
  if (!plain) {  // Python refuses some
    PyObject* operands = PyTuple_GetSlice(args, 0, count);
    PyObject* found = operands == nullptr ? nullptr : PyObject_CallOneArg(python_versions, operands);
    Py_XDECREF(operands);
    return found;
  }
  if (!written) return Py_NewRef(zero());
  PyObject* found = PyTuple_New(count);
  for (Py_ssize_t i = 0; found != nullptr && i < count; ++i) {
    PyObject* value = PyTuple_GET_ITEM(args, i);
    PyObject* counter = tensor_layout.is(value) ? tensor_layout.counter.of(value) : Py_None;
    PyObject* version = counter == Py_None ? zero() : counter_layout.value.read(counter);
    if (version == nullptr) {
      Py_CLEAR(found);
    } else {
      PyTuple_SET_ITEM(found, i, Py_NewRef(version));
    }
  }
  return found;
}

bool record(const ShortWay* way, PyObject* out, PyArrayObject* array, int type, Kept& kept) {
  const NodeLayout& n = node_layout;
  const PrimitiveNodeLayout& p = primitive_node_layout;
  PyObject* shape = shape_of(array);
  PyObject* sequence = shape == nullptr ? nullptr : next_sequence();
  PyObject* node = sequence == nullptr ? nullptr : p.type->tp_alloc(p.type, 0);
  if (node == nullptr) {
    for (PyObject* member : {shape, sequence, kept.sources, kept.args, kept.shapes, kept.versions,
                             kept.out}) {
      Py_XDECREF(member);
    }
    return false;
  }
  n.sequence.fill(node, sequence);
  n.sources.fill(node, kept.sources);
  n.shape.fill(node, shape);
  n.dtype.fill(node, Py_NewRef(element_types[type].dtype));
  n.extras.fill(node, Py_NewRef(Py_None));
  n.outputs.fill(node, Py_NewRef(Py_None));
  p.counter.fill(node, Py_NewRef(Py_None));
  p.primitive.fill(node, Py_NewRef(way->primitive));
  p.args.fill(node, kept.args);
  p.shapes.fill(node, kept.shapes);
  p.versions.fill(node, kept.versions);
  p.out.fill(node, kept.out);
  tensor_layout.grad_fn.put(out, node);
  tensor_layout.requires_grad.put(out, Py_NewRef(Py_True));
  return true;
}

PyObject* counter_of(PyObject* tensor) {
  const TensorLayout& t = tensor_layout;
  PyObject* counter = t.counter.read(tensor);
  if (counter == nullptr) return nullptr;
  if (counter != Py_None) {
    // The others are those of inference tensors, and of tensors that moved.
    return counter_layout.is(counter) ? Py_NewRef(counter) : nullptr;
  }
  PyObject* node = t.grad_fn.read(tensor);
  if (node == nullptr) return nullptr;
  if (node == Py_None) {
    counter = new_counter();
  } else if (primitive_node_layout.is(node) && node_layout.outputs.of(node) == Py_None) {
    // A node that saved the elements of its result must hear of writes to them.
    counter = primitive_node_layout.counter.read(node);
    if (counter == Py_None) {
      counter = new_counter();
      if (counter != nullptr) primitive_node_layout.counter.put(node, Py_NewRef(counter));
    } else {
      counter = counter_layout.is(counter) ? Py_NewRef(counter) : nullptr;
    }
  } else {
    counter = PyObject_CallMethodNoArgs(tensor, name_shared_counter);
    if (counter != nullptr && !counter_layout.is(counter)) Py_CLEAR(counter);
    return counter;
  }
  if (counter != nullptr) t.counter.put(tensor, Py_NewRef(counter));
  return counter;
}

bool mark_view(const ShortWay* way, PyObject* out, PyObject* x, PyObject* counter, PyObject* rest) {
  const TensorLayout& t = tensor_layout;
  PyObject* base = t.base.read(x);
  PyObject* before = base == nullptr ? nullptr : t.recipe.read(x);
  if (before == nullptr) return false;
  if (base == Py_None) {
    base = x;
    before = Py_None;
  } else if (before == Py_None) {
    base = nullptr;  // a view that nobody can make again
  }
  if (base != nullptr) {
    PyObject* wrapped = PyTuple_Pack(1, rest);
    PyObject* recipe = wrapped == nullptr ? nullptr : PyTuple_Pack(3, way->again, wrapped, before);
    Py_XDECREF(wrapped);
    if (recipe == nullptr) return false;
    t.recipe.put(out, recipe);
    t.base.put(out, Py_NewRef(base));
  }
  t.counter.put(out, Py_NewRef(counter));
  PyObject* history = counter_layout.history.read(counter);
  if (history == nullptr) return false;
  return is_zero(history) || PyObject_SetAttr(out, name_seen, history) == 0;
}

bool prepare_quick_records() {
  name_synchronise = PyUnicode_InternFromString("_synchronise");
  name_shared_counter = PyUnicode_InternFromString("_shared_counter");
  name_seen = PyUnicode_InternFromString("_seen");
  name_inference = PyUnicode_InternFromString("_inference");
  return name_synchronise && name_shared_counter && name_seen && name_inference;
}

}  // namespace tensorplay

// The calls of the short ways: one function for each kind.
#include "quick.h"

namespace tensorplay {

PyObject* first_is_number = nullptr;
PyObject* second_is_number = nullptr;
PyObject* name_astype = nullptr;

PyObject* missed(const ShortWay* way, PyObject* const* args, size_t flags, PyObject* names) {
  if (PyErr_Occurred()) return nullptr;
  if (way->miss == nullptr) return Py_NewRef(Py_None);
  return PyObject_Vectorcall(way->miss, args, flags, names);
}

PyObject* wrong_call(const ShortWay* way, PyObject* const* args, size_t flags, PyObject* names) {
  if (way->miss != nullptr) return missed(way, args, flags, names);
  PyErr_SetString(PyExc_TypeError, "a short way was called with other arguments than it takes");
  return nullptr;
}

bool is_plain_call(size_t flags, PyObject* names, Py_ssize_t least, Py_ssize_t most) {
  const Py_ssize_t count = PyVectorcall_NARGS(flags);
  return count >= least && count <= most && (names == nullptr || PyTuple_GET_SIZE(names) == 0);
}

PyObject* tuple_of(PyObject* const* items, Py_ssize_t count) {
  PyObject* made = PyTuple_New(count);
  if (made == nullptr) return nullptr;
  for (Py_ssize_t i = 0; i < count; ++i) PyTuple_SET_ITEM(made, i, Py_NewRef(items[i]));
  return made;
}

int wants_record(const ShortWay* way, bool tracked) {
  return tracked && way->differentiable ? is_recording() : 0;
}

int are_defaults(const ShortWay* way, PyObject* const* rest, Py_ssize_t count) {
  if (count == 0) return 1;
  if (count == PyTuple_GET_SIZE(way->defaults)) {
    Py_ssize_t i = 0;
    while (i < count && rest[i] == PyTuple_GET_ITEM(way->defaults, i)) ++i;
    if (i == count) return 1;
  }
  PyObject* given = tuple_of(rest, count);
  if (given == nullptr) return -1;
  const int same = PyObject_RichCompareBool(given, way->defaults, Py_EQ);
  Py_DECREF(given);
  if (same < 0) is_refusal();
  return same;
}

PyObject* converted(const ShortWay* way, PyObject* const* rest, Py_ssize_t count) {
  if (count != PyTuple_GET_SIZE(way->converters)) {
    PyErr_SetString(PyExc_ValueError, "a short way was called with too few arguments");
    return nullptr;
  }
  PyObject* made = PyTuple_New(count);
  for (Py_ssize_t i = 0; made != nullptr && i < count; ++i) {
    PyObject* value = PyObject_CallOneArg(PyTuple_GET_ITEM(way->converters, i), rest[i]);
    if (value == nullptr) {
      Py_CLEAR(made);
    } else {
      PyTuple_SET_ITEM(made, i, value);
    }
  }
  return made;
}

namespace {

PyObject* none() { return Py_NewRef(Py_None); }

// The tuple (first, second, *rest), without `second` if it is null.
PyObject* joined(PyObject* first, PyObject* second, PyObject* rest) {
  const Py_ssize_t before = second == nullptr ? 1 : 2;
  const Py_ssize_t count = PyTuple_GET_SIZE(rest);
  PyObject* made = PyTuple_New(before + count);
  if (made == nullptr) return nullptr;
  PyTuple_SET_ITEM(made, 0, Py_NewRef(first));
  if (second != nullptr) PyTuple_SET_ITEM(made, 1, Py_NewRef(second));
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyTuple_SET_ITEM(made, before + i, Py_NewRef(PyTuple_GET_ITEM(rest, i)));
  }
  return made;
}

// --- two tensors, or one and a number --------------------------------------------------------

bool record_two(const ShortWay* way, PyObject* out, PyArrayObject* result, int type,
                const Operand& x, const Operand& y) {
  const unsigned char saves = way->saves[(x.tracked ? 1 : 0) + (y.tracked ? 2 : 0)];
  const bool saves_x = saves & kSavesFirst;
  const bool saves_y = saves & kSavesSecond;
  Kept kept;
  PyObject* first = x.tracked ? source_of(x.object) : none();
  PyObject* second = first == nullptr ? nullptr : y.tracked ? source_of(y.object) : none();
  kept.sources = second == nullptr ? nullptr : PyTuple_Pack(2, first, second);
  Py_XDECREF(first);
  Py_XDECREF(second);
  if (kept.sources == nullptr) return false;
  const bool x_is_number = x.array == nullptr;
  const bool y_is_number = y.array == nullptr;
  if (!saves_x && !saves_y && !x_is_number && !y_is_number) {
    kept.args = Py_NewRef(way->plain);
  } else {
    kept.args = joined(saves_x || x_is_number ? x.object : Py_None,
                       saves_y || y_is_number ? y.object : Py_None, way->defaults);
  }
  // A number that is kept has no version, and a node of numbers alone is never freed.
  if (kept.args != nullptr) {
    kept.versions = (saves_x && !x_is_number) || (saves_y && !y_is_number)
                        ? versions_of(kept.args, 2)
                        : none();
  }
  if (kept.versions != nullptr) {
    if (way->elementwise) {
      kept.shapes =
          Py_NewRef(x_is_number ? first_is_number : y_is_number ? second_is_number : Py_None);
    } else {
      PyObject* left = shape_of(x.array);
      PyObject* right = left == nullptr ? nullptr : shape_of(y.array);
      kept.shapes = right == nullptr ? nullptr : PyTuple_Pack(2, left, right);
      Py_XDECREF(left);
      Py_XDECREF(right);
    }
  }
  if (kept.shapes == nullptr) {
    Py_XDECREF(kept.sources);
    Py_XDECREF(kept.args);
    Py_XDECREF(kept.versions);
    return false;
  }
  kept.out = saves & kSavesResult ? Py_NewRef(reinterpret_cast<PyObject*>(result)) : none();
  return record(way, out, result, type, kept);
}

PyObject* product(PyArrayObject* x, PyArrayObject* y) {
  if (PyArray_NDIM(x) != 2 || PyArray_NDIM(y) != 2) return nullptr;
  return compute_product(reinterpret_cast<PyObject*>(x), reinterpret_cast<PyObject*>(y));
}

PyObject* function_of_two(const ShortWay* way, PyArrayObject* x, PyArrayObject* y) {
  if (way->compiled == Compiled::kProduct) return product(x, y);
  PyObject* result = PyObject_CallFunctionObjArgs(way->function, x, y, nullptr);
  if (result == nullptr) is_refusal();
  return array_from(result);
}

PyObject* try_two(const ShortWay* way, PyObject* left, PyObject* right) {
  Operand x, y;
  int type = -1;
  const bool left_is_tensor = tensor_layout.is(left);
  const bool right_is_tensor = tensor_layout.is(right);
  if (left_is_tensor && (type = read_tensor(left, x)) < 0) return nullptr;
  if (right_is_tensor) {
    const int other = read_tensor(right, y);
    if (other < 0 || (left_is_tensor && other != type)) return nullptr;
    type = other;
  }
  if (!left_is_tensor || !right_is_tensor) {
    PyObject* number = left_is_tensor ? right : left;
    if (type < 0 || !way->elementwise || !is_number(number)) return nullptr;
    Operand& operand = left_is_tensor ? y : x;
    operand.object = number;
    operand.read_number(type);
  }
  PyObject* result = way->elementwise ? compute_two(way, type, x, y)
                                      : function_of_two(way, x.array, y.array);
  if (result == nullptr) return nullptr;
  PyObject* out = finish(Py_NewRef(result), type);
  if (out != nullptr) {
    const int records = wants_record(way, x.tracked || y.tracked);
    if (records < 0 || (records > 0 && !record_two(way, out, reinterpret_cast<PyArrayObject*>(result),
                                                   type, x, y))) {
      Py_CLEAR(out);
    }
  }
  Py_DECREF(result);
  return out;
}

}  // namespace

PyObject* call_two(PyObject* callable, PyObject* const* args, size_t flags, PyObject* names) {
  const ShortWay* way = way_of(callable);
  if (!is_plain_call(flags, names, 2, 2)) return wrong_call(way, args, flags, names);
  PyObject* out = nullptr;
  if (!has_detours()) out = try_two(way, args[way->swaps ? 1 : 0], args[way->swaps ? 0 : 1]);
  return out != nullptr ? out : missed(way, args, flags, names);
}

namespace {

// --- one tensor and other arguments ----------------------------------------------------------

PyObject* function_of_one(const ShortWay* way, int type, PyArrayObject* x, PyObject* const* rest,
                          Py_ssize_t count, bool usual) {
  if (usual && (way->compiled == Compiled::kSum || way->compiled == Compiled::kMean)) {
    PyObject* sum = compute_sum(type, x, way->compiled == Compiled::kMean);
    if (sum != nullptr || PyErr_Occurred()) return sum;
  }
  PyObject* given = tuple_of(rest, count);
  if (given == nullptr) return nullptr;
  PyObject* result = PyObject_CallFunctionObjArgs(way->function, x, given, nullptr);
  Py_DECREF(given);
  if (result == nullptr) is_refusal();
  return array_from(result);
}

// `rest` is null where it has the defaults.
bool record_one(const ShortWay* way, PyObject* out, PyArrayObject* result, int type,
                const Operand& x, PyObject* rest) {
  const bool saves_x = way->saves[0] & kSavesFirst;
  Kept kept;
  PyObject* source = source_of(x.object);
  kept.sources = source == nullptr ? nullptr : PyTuple_Pack(1, source);
  Py_XDECREF(source);
  if (kept.sources == nullptr) return false;
  if (!saves_x && rest == nullptr) {
    kept.args = Py_NewRef(way->plain);
  } else {
    kept.args = joined(saves_x ? x.object : Py_None, nullptr, rest == nullptr ? way->defaults : rest);
  }
  if (kept.args != nullptr) kept.versions = saves_x ? versions_of(kept.args, 1) : none();
  if (kept.versions != nullptr) {
    if (way->elementwise) {
      kept.shapes = none();
    } else {
      PyObject* shape = shape_of(x.array);
      kept.shapes = shape == nullptr ? nullptr : PyTuple_Pack(1, shape);
      Py_XDECREF(shape);
    }
  }
  if (kept.shapes == nullptr) {
    Py_XDECREF(kept.sources);
    Py_XDECREF(kept.args);
    Py_XDECREF(kept.versions);
    return false;
  }
  kept.out = way->saves[0] & kSavesResult ? Py_NewRef(reinterpret_cast<PyObject*>(result)) : none();
  return record(way, out, result, type, kept);
}

PyObject* try_arguments(const ShortWay* way, PyObject* tensor, PyObject* const* rest,
                        Py_ssize_t count) {
  Operand x;
  const int type = read_tensor(tensor, x);
  if (type < 0) return nullptr;
  int usual = 1;
  PyObject* result = nullptr;
  if (way->elementwise) {
    result = compute_one(way, type, x.array);
  } else if ((usual = are_defaults(way, rest, count)) >= 0) {
    result = function_of_one(way, type, x.array, rest, count, usual != 0);
  }
  if (result == nullptr) return nullptr;
  PyObject* descr = reinterpret_cast<PyObject*>(element_types[type].descr);
  if (way->casts && PyObject_TypeCheck(result, &PyArray_Type) &&
      reinterpret_cast<PyObject*>(PyArray_DESCR(reinterpret_cast<PyArrayObject*>(result))) !=
          descr) {
    Py_SETREF(result, PyObject_CallMethodOneArg(result, name_astype, descr));
    if (result == nullptr) return nullptr;
  }
  const int records = wants_record(way, x.tracked);
  PyObject* given = nullptr;
  if (records < 0 || (records > 0 && usual == 0 &&
                      (given = converted(way, rest, count)) == nullptr)) {
    Py_DECREF(result);
    return nullptr;
  }
  PyObject* out = finish(Py_NewRef(result), type);
  if (out != nullptr && records > 0 &&
      !record_one(way, out, reinterpret_cast<PyArrayObject*>(result), type, x, given)) {
    Py_CLEAR(out);
  }
  Py_XDECREF(given);
  Py_DECREF(result);
  return out;
}

}  // namespace

PyObject* call_arguments(PyObject* callable, PyObject* const* args, size_t flags,
                         PyObject* names) {
  const ShortWay* way = way_of(callable);
  if (!is_plain_call(flags, names, 1, PY_SSIZE_T_MAX)) return wrong_call(way, args, flags, names);
  PyObject* out = nullptr;
  if (tensor_layout.is(args[0]) && !has_detours()) {
    out = try_arguments(way, args[0], args + 1, PyVectorcall_NARGS(flags) - 1);
  }
  return out != nullptr ? out : missed(way, args, flags, names);
}

namespace {

// --- views -----------------------------------------------------------------------------------

// Call the function of a declaration, which returns the view and the arguments in their normal form.
PyObject* view_by_python(const ShortWay* way, PyArrayObject* x, PyObject* given, PyObject** normal) {
  PyObject* found = PyObject_CallFunctionObjArgs(way->function, x, given, nullptr);
  if (found == nullptr) {
    is_refusal();
    return nullptr;
  }
  PyObject* view = nullptr;
  PyObject* rest = nullptr;
  if (found != Py_None && PyArg_ParseTuple(found, "O!O!", &PyArray_Type, &view, &PyTuple_Type,
                                           &rest)) {
    Py_INCREF(view);
    *normal = Py_NewRef(rest);
  }
  Py_DECREF(found);
  return view;
}

bool record_view(const ShortWay* way, PyObject* out, PyArrayObject* result, int type,
                 const Operand& x, PyObject* rest) {
  PyObject* shape = shape_of(x.array);
  PyObject* source = shape == nullptr ? nullptr : source_of(x.object);
  Kept kept;
  if (source != nullptr) {
    kept.sources = PyTuple_Pack(1, source);
    kept.args = joined(way->shortened ? shape : Py_None, nullptr, rest);
    kept.shapes = PyTuple_Pack(1, shape);
  }
  Py_XDECREF(shape);
  Py_XDECREF(source);
  if (kept.sources == nullptr || kept.args == nullptr || kept.shapes == nullptr) {
    Py_XDECREF(kept.sources);
    Py_XDECREF(kept.args);
    Py_XDECREF(kept.shapes);
    return false;
  }
  kept.versions = none();
  kept.out = none();
  return record(way, out, result, type, kept);
}

PyObject* try_view(const ShortWay* way, PyObject* tensor, PyObject* const* rest) {
  const Py_ssize_t count = PyTuple_GET_SIZE(way->converters);
  Operand x;
  const int type = read_tensor(tensor, x);
  if (type < 0) return nullptr;
  PyObject* normal = nullptr;
  PyObject* given = nullptr;
  PyObject* result = nullptr;
  if (way->view != nullptr) {
    result = way->view(x.array, rest, &normal);
  } else if ((given = tuple_of(rest, count)) != nullptr) {
    result = view_by_python(way, x.array, given, &normal);
  }
  Py_XDECREF(given);
  if (result != nullptr && normal == nullptr) {
    normal = tuple_of(rest, count);
    if (normal == nullptr) Py_CLEAR(result);
  }
  PyObject* counter = nullptr;
  if (result != nullptr) {
    PyObject* memory = PyArray_BASE(reinterpret_cast<PyArrayObject*>(result));
    // Others are copies, or only a closer look can tell that they are views.
    if (memory == reinterpret_cast<PyObject*>(x.array) ||
        (memory != nullptr && memory == PyArray_BASE(x.array))) {
      counter = counter_of(tensor);
    }
  }
  PyObject* out = nullptr;
  if (counter != nullptr) {
    out = finish(Py_NewRef(result), type);
    const int records = out == nullptr ? 0 : wants_record(way, x.tracked);
    if (out != nullptr &&
        (records < 0 || !mark_view(way, out, tensor, counter, normal) ||
         (records > 0 && !record_view(way, out, reinterpret_cast<PyArrayObject*>(result), type, x,
                                      normal)))) {
      Py_CLEAR(out);
    }
    Py_DECREF(counter);
  }
  Py_XDECREF(result);
  Py_XDECREF(normal);
  return out;
}

}  // namespace

PyObject* call_view(PyObject* callable, PyObject* const* args, size_t flags, PyObject* names) {
  const ShortWay* way = way_of(callable);
  const Py_ssize_t count = 1 + PyTuple_GET_SIZE(way->converters);
  if (!is_plain_call(flags, names, count, count)) return wrong_call(way, args, flags, names);
  PyObject* out = nullptr;
  if (tensor_layout.is(args[0]) && !has_detours()) out = try_view(way, args[0], args + 1);
  return out != nullptr ? out : missed(way, args, flags, names);
}

namespace {

// --- writes ----------------------------------------------------------------------------------

// Write what the declaration computes with other than default arguments: 1, 0 for a miss, -1.
int write_computed(const ShortWay* way, const Operand& x, const Operand& y, PyObject* const* rest,
                   Py_ssize_t count) {
  constexpr Py_ssize_t kMost = 8;
  if (count + 2 > kMost) return 0;
  PyObject* room[kMost + 2] = {nullptr, way->again, reinterpret_cast<PyObject*>(x.array),
                               y.array == nullptr ? y.object
                                                  : reinterpret_cast<PyObject*>(y.array)};
  for (Py_ssize_t i = 0; i < count; ++i) room[4 + i] = rest[i];
  PyObject* result =
      PyObject_Vectorcall(python_quietly, room + 1,
                          static_cast<size_t>(3 + count) | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
  if (result == nullptr) return is_refusal() ? 0 : -1;
  result = array_from(result);
  if (result == nullptr) return PyErr_Occurred() ? -1 : 0;
  int done = 0;
  auto* array = reinterpret_cast<PyArrayObject*>(result);
  if (PyArray_SAMESHAPE(array, x.array) && PyArray_DESCR(array) == PyArray_DESCR(x.array)) {
    done = PyArray_CopyInto(x.array, array) == 0 ? 1 : is_refusal() ? 0 : -1;
  }
  Py_DECREF(result);
  return done;
}

// Count a write: false with an error set.
bool count_write(PyObject* counter) {
  PyObject* before = counter_layout.value.read(counter);
  PyObject* one = before == nullptr ? nullptr : PyLong_FromLong(1);
  PyObject* after = one == nullptr ? nullptr : PyNumber_Add(before, one);
  Py_XDECREF(one);
  if (after == nullptr) return false;
  counter_layout.value.put(counter, after);
  return true;
}

// Write into the first operand: 1, 0 for a miss, -1 with an error set.
int try_write(const ShortWay* way, PyObject* target, PyObject* value, PyObject* const* rest,
              Py_ssize_t count) {
  Operand x, y;
  const int type = read_tensor(target, x);
  if (type < 0) return 0;
  if (tensor_layout.is(value)) {
    if (read_tensor(value, y) != type) return 0;
  } else if (is_number(value)) {
    y.object = value;
    y.read_number(type);
  } else {
    return 0;
  }
  const int recorded = x.tracked || y.tracked ? is_recording() : 0;
  if (recorded < 0) return -1;
  if (recorded > 0 || !PyArray_IS_C_CONTIGUOUS(x.array) || !PyArray_ISWRITEABLE(x.array)) return 0;
  PyObject* counter = counter_of(target);
  if (counter == nullptr) return 0;
  int done = are_defaults(way, rest, count);
  if (done > 0) {
    done = compute_into(way, type, x, y);
  } else if (done == 0) {
    bool plain = true;
    for (Py_ssize_t i = 0; i < count; ++i) plain = plain && is_number(rest[i]);
    if (plain && way->compiled == Compiled::kScaled && count == 1) {
      done = compute_scaled_into(way, type, x, y, rest[0]);
    }
    if (plain && done == 0) done = write_computed(way, x, y, rest, count);
  }
  if (done > 0 && !count_write(counter)) done = -1;
  Py_DECREF(counter);
  return done;
}

}  // namespace

PyObject* call_write(PyObject* callable, PyObject* const* args, size_t flags, PyObject* names) {
  const ShortWay* way = way_of(callable);
  if (!is_plain_call(flags, names, 2, PY_SSIZE_T_MAX)) return wrong_call(way, args, flags, names);
  int done = 0;
  // A view is written by the long way: whoever else sees the memory may have to hear of it.
  if (tensor_layout.is(args[0]) && !has_detours() && tensor_layout.base.of(args[0]) == Py_None) {
    done = try_write(way, args[0], args[1], args + 2, PyVectorcall_NARGS(flags) - 2);
  }
  return done > 0 ? Py_NewRef(args[0]) : missed(way, args, flags, names);
}

}  // namespace tensorplay

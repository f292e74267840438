// What a reverse pass does at one node: see engine.h.
#include "engine.h"

namespace tensorplay {

FunctionLayout function_layout;

namespace {

// Whether the elements fill their memory without gaps, in whichever order of dimensions.
bool is_dense(PyArrayObject* array) {
  const int rank = PyArray_NDIM(array);
  const npy_intp *shape = PyArray_DIMS(array), *strides = PyArray_STRIDES(array);
  npy_intp step = PyArray_ITEMSIZE(array);
  bool seen[NPY_MAXDIMS] = {};
  for (int done = 0; done < rank; ++done) {  // the dimension that goes on where the last one ended
    int next = -1;
    for (int d = 0; d < rank && next < 0; ++d) {
      if (!seen[d] && (shape[d] == 1 || strides[d] == step)) next = d;
    }
    if (next < 0) return false;
    seen[next] = true;
    step *= shape[next];
  }
  return true;
}

// The lock that is held while a `grad` grows.
class Accumulating {
 public:
  Accumulating() : held_(Ref::take(PyObject_CallNoArgs(engine_objects.acquire))) {}
  Accumulating(const Accumulating&) = delete;
  Accumulating& operator=(const Accumulating&) = delete;
  ~Accumulating() {
    if (!held_) return;
    PyObject *kind, *error, *traceback;
    PyErr_Fetch(&kind, &error, &traceback);
    Ref done = Ref::take(PyObject_CallNoArgs(engine_objects.release));
    if (!done) PyErr_WriteUnraisable(engine_objects.release);
    PyErr_Restore(kind, error, traceback);
  }
  explicit operator bool() const { return static_cast<bool>(held_); }

 private:
  Ref held_;
};

// The number of writes that a counter has counted; -1 with an error set.
int64_t writes_of(PyObject* counter) {
  if (counter == Py_None) return 0;
  if (counter == nullptr) {
    PyErr_SetObject(PyExc_AttributeError, tensor_layout.counter.name);
    return -1;
  }
  if (counter_layout.is(counter)) {
    PyObject* value = counter_layout.value.read(counter);
    return value == nullptr ? -1 : PyLong_AsLongLong(value);
  }
  Ref value = Ref::take(PyObject_GetAttr(counter, engine_objects.value));
  return value ? PyLong_AsLongLong(value.get()) : -1;
}

// What a node keeps of its arguments, as the formulas on arrays take it.
class Arguments {
 public:
  // kNo: something is more than its elements, or was written since, which Python words.
  Answer read(PyObject* args, PyObject* versions) {
    const bool is_tuple = PyTuple_CheckExact(args);
    if (!is_tuple && !PyList_CheckExact(args)) return Answer::kNo;
    const Py_ssize_t count = Py_SIZE(args);
    if (count > kMost) return Answer::kNo;
    for (; count_ < count; ++count_) {
      PyObject* value = is_tuple ? PyTuple_GET_ITEM(args, count_) : PyList_GET_ITEM(args, count_);
      if (versions != Py_None && tensor_layout.is(value)) {
        const int64_t version = writes_of(tensor_layout.counter.of(value));
        if (version < 0) return Answer::kError;
        int64_t expected = 0;
        if (PyTuple_CheckExact(versions) && PyTuple_GET_SIZE(versions) > count_) {
          expected = PyLong_AsLongLong(PyTuple_GET_ITEM(versions, count_));
        }
        if (version != expected || tensor_layout.tangent.of(value) != Py_None) return Answer::kNo;
        value = tensor_layout.array.of(value);
        if (value == nullptr) return Answer::kNo;
      } else if (versions != Py_None && !is_simple(value)) {
        return Answer::kNo;  // as what a hook packed is
      }
      held_[count_] = Ref::share(value);
      values_[count_] = value;
    }
    return Answer::kDone;
  }

  PyObject* const* values() const { return values_; }
  Py_ssize_t count() const { return count_; }

  PyObject* list() const {  // a new reference
    PyObject* made = PyList_New(count_);
    for (Py_ssize_t i = 0; made != nullptr && i < count_; ++i) {
      PyList_SET_ITEM(made, i, Py_NewRef(values_[i]));
    }
    return made;
  }

 private:
  static constexpr Py_ssize_t kMost = 16;

  static bool is_simple(PyObject* value) {
    return value == Py_None || PyFloat_CheckExact(value) || PyLong_CheckExact(value) ||
           PyArray_CheckExact(value) || PyBool_Check(value) || PyTuple_CheckExact(value) ||
           PyUnicode_CheckExact(value) || PySlice_Check(value) || value == Py_Ellipsis;
  }

  Ref held_[kMost];
  PyObject* values_[kMost];
  Py_ssize_t count_ = 0;
};

// The formulas of a primitive for elements of a type, one for each tensor argument; a new reference.
Ref rules_of(PyObject* primitive, PyObject* dtype, PyObject* shapes) {
  Ref known = Ref::take(PyObject_GetAttr(primitive, engine_objects.known_array_rules));
  if (!known || !PyDict_Check(known.get())) return Ref();
  Ref ways = Ref::share(PyDict_GetItemWithError(known.get(), dtype));
  if (!ways) {
    if (PyErr_Occurred()) return Ref();
    ways = Ref::take(
        PyObject_CallMethodOneArg(primitive, engine_objects.array_rules, dtype));
    if (!ways) return Ref();
  }
  const Py_ssize_t way = PyLong_CheckExact(shapes) ? PyLong_AsSsize_t(shapes) : 0;
  return Ref::take(PySequence_GetItem(ways.get(), way));
}

bool has_shape(PyArrayObject* array, PyObject* shape) {
  if (!PyTuple_Check(shape) || PyTuple_GET_SIZE(shape) != PyArray_NDIM(array)) return false;
  for (int i = 0; i < PyArray_NDIM(array); ++i) {
    const Py_ssize_t size = PyLong_AsSsize_t(PyTuple_GET_ITEM(shape, i));
    if (size != PyArray_DIM(array, i)) {
      if (size == -1) PyErr_Clear();
      return false;
    }
  }
  return true;
}

// Whether a gradient can be added to without the checks of an in-place operator; -1 with an error.
int is_ordinary(PyObject* present) {
  const TensorLayout& t = tensor_layout;
  if (!is_plain(present) || t.base.of(present) != Py_None) return 0;
  PyArrayObject* array = as_array(t.array.of(present));
  if (!PyArray_IS_C_CONTIGUOUS(array) || !PyArray_ISWRITEABLE(array)) return 0;
  Ref inference = Ref::take(PyObject_GetAttr(present, engine_objects.inference));
  return inference ? inference.get() == Py_False : -1;
}

}  // namespace

bool bump_version(PyObject* tensor) {
  PyObject* counter = tensor_layout.counter.of(tensor);
  if (counter_layout.is(counter)) {
    const int64_t value = writes_of(counter);
    if (value == -1 && PyErr_Occurred()) return false;
    PyObject* more = PyLong_FromLongLong(value + 1);
    if (more == nullptr) return false;
    counter_layout.value.put(counter, more);
    return true;
  }
  return static_cast<bool>(
      Ref::take(PyObject_CallMethodNoArgs(tensor, engine_objects.bump_version)));
}

PyObject* wrapped_gradient(PyObject* array, PyObject* dtype) {
  if (has_detours()) return PyObject_CallFunctionObjArgs(engine_objects.wrap, array, dtype, nullptr);
  return new_tensor(Py_NewRef(array), Py_NewRef(dtype));
}

Ref owned_array(Ref array) {
  PyArrayObject* made = as_array(array.get());
  if (Py_REFCNT(array.get()) == 1 && PyArray_BASE(made) == nullptr &&
      PyArray_CHKFLAGS(made, NPY_ARRAY_OWNDATA)) {
    return array;
  }
  const bool keeps_order =
      PyArray_IS_C_CONTIGUOUS(made) || PyArray_IS_F_CONTIGUOUS(made) || is_dense(made);
  return Ref::take(PyArray_NewCopy(made, keeps_order ? NPY_KEEPORDER : NPY_CORDER));
}

NoRecord::~NoRecord() {
  if (!before_) return;
  PyObject *kind, *error, *traceback;
  PyErr_Fetch(&kind, &error, &traceback);
  if (PyObject_SetAttr(grad_state, engine_objects.enabled, before_.get()) != 0) {
    PyErr_WriteUnraisable(grad_state);
  }
  PyErr_Restore(kind, error, traceback);
}

bool NoRecord::begin() {
  if (before_) return true;
  Ref before = Ref::take(PyObject_GetAttr(grad_state, engine_objects.enabled));
  if (!before || (before.get() != Py_False &&
                  PyObject_SetAttr(grad_state, engine_objects.enabled, Py_False) != 0)) {
    return false;
  }
  before_ = std::move(before);
  return true;
}

bool Pass::is_wanted(int32_t target) const {
  return target >= 0 && entries_[static_cast<size_t>(target)].useful;
}

// Return the node of an entry; that of a leaf is made now, as somebody is to see it.
PyObject* Pass::node_of(int32_t index) {
  Entry& entry = entries_[static_cast<size_t>(index)];
  if (entry.kind == Kind::kLeaf) {
    Ref node = Ref::take(PyObject_CallOneArg(engine_objects.accumulator_of, entry.node.get()));
    if (!node) return nullptr;
    entry.node = std::move(node);
    entry.kind = Kind::kAccumulate;
  }
  return entry.node.get();
}

// Make what Python's functions, and hooks, ask about the pass.
bool Pass::begin_python() {
  if (state_) return true;
  if (!no_record_.begin()) return false;
  Ref nodes = Ref::take(PyList_New(0));
  Ref useful = inputs_ == Py_None ? Ref::share(Py_None) : Ref::take(PySet_New(nullptr));
  if (!nodes || !useful) return false;
  for (size_t n = 0; n < entries_.size(); ++n) {
    PyObject* node = node_of(static_cast<int32_t>(n));
    if (node == nullptr || PyList_Append(nodes.get(), node) != 0) return false;
    if (useful.get() == Py_None || !entries_[n].useful) continue;
    if (PySet_Add(useful.get(), node) != 0) return false;
  }
  Ref made = Ref::take(PyObject_CallFunctionObjArgs(
      engine_objects.begin, inputs_, retain_ ? Py_True : Py_False,
      accumulate_ ? Py_True : Py_False, captured_.get(), nodes.get(), useful.get(), nullptr));
  PyObject *state, *passes, *running;
  if (!made || !PyArg_ParseTuple(made.get(), "OO!O", &state, &PyList_Type, &passes, &running) ||
      PyList_Append(passes, running) != 0) {
    return false;
  }
  passes_ = Ref::share(passes);
  state_ = Ref::share(state);
  useful_ = std::move(useful);
  return true;
}

// Run a compiled graph, which needs no state of the pass where it runs no code of people.
Answer Pass::apply_compiled(int32_t index, PyObject* gradient, std::vector<Ref>& results) {
  const Entry& entry = entries_[static_cast<size_t>(index)];
  if (!no_record_.begin() || !quiet_.end()) return Answer::kError;
  PyObject* args[] = {entry.node.get(), gradient, Py_None, retain_ ? Py_True : Py_False};
  Ref found = Ref::take(PyObject_VectorcallMethod(engine_objects.apply_to_array, args, 3,
                                                  engine_objects.named_retain));
  if (!found) return Answer::kError;
  if (found.get() == Py_None) return Answer::kNo;
  if (!PyList_CheckExact(found.get()) || PyList_GET_SIZE(found.get()) != entry.count) {
    PyErr_SetString(PyExc_RuntimeError, "expected a gradient for each input");
    return Answer::kError;
  }
  results.resize(static_cast<size_t>(entry.count));
  for (int32_t i = 0; i < entry.count; ++i) {
    results[static_cast<size_t>(i)] = Ref::share(PyList_GET_ITEM(found.get(), i));
  }
  return Answer::kDone;
}

// Run the formulas of a primitive on arrays.
Answer Pass::apply_primitive(int32_t index, PyObject* gradient, std::vector<Ref>& results) {
  const PrimitiveNodeLayout& p = primitive_node_layout;
  const Entry& entry = entries_[static_cast<size_t>(index)];
  PyObject* node = entry.node.get();
  Ref shapes = Ref::share(p.shapes.of(node));
  Ref args = Ref::share(p.args.of(node));
  Ref out = Ref::share(p.out.of(node));
  Ref versions = Ref::share(p.versions.of(node));
  if (!shapes || !args || !out || !versions) return Answer::kNo;
  if (args.get() == Py_None || PyList_CheckExact(shapes.get())) return Answer::kNo;
  if (out.get() != Py_None) {
    if (!PyArray_CheckExact(out.get())) return Answer::kNo;
    const int64_t writes = writes_of(p.counter.of(node));
    if (writes < 0) return Answer::kError;
    if (writes != 0) return Answer::kNo;
  }
  Arguments arguments;
  Answer answer = arguments.read(args.get(), versions.get());
  if (answer != Answer::kDone) return answer;
  Ref primitive = Ref::share(p.primitive.of(node));
  Ref dtype = Ref::share(node_layout.dtype.of(node));
  if (!primitive || !dtype) return Answer::kNo;
  Ref rules = rules_of(primitive.get(), dtype.get(), shapes.get());
  if (!rules) return PyErr_Occurred() ? Answer::kError : Answer::kNo;
  if (!PyList_CheckExact(rules.get())) return Answer::kNo;
  Ref list;  // of the arguments, for formulas in Python
  results.resize(static_cast<size_t>(entry.count));
  for (int32_t i = 0; i < entry.count; ++i) {
    if (!is_wanted(targets_[static_cast<size_t>(entry.first + i)].index)) continue;
    if (i >= PyList_GET_SIZE(rules.get())) return Answer::kNo;
    Ref held = Ref::share(PyList_GET_ITEM(rules.get(), i));
    PyObject* rule = held.get();
    if (rule == Py_None) return Answer::kNo;
    Ref result;
    if (Py_TYPE(rule) == array_program_type) {
      result = Ref::take(run_program(rule, gradient, arguments.values(), arguments.count(),
                                     out.get(), quiet_));
    } else {
      if (!list) list = Ref::take(arguments.list());
      if (!list || !quiet_.begin()) return Answer::kError;
      PyObject* given[] = {gradient, list.get(), shapes.get(), out.get()};
      result = Ref::take(PyObject_Vectorcall(rule, given, 4, nullptr));
    }
    if (!result) return Answer::kError;
    if (result.get() == Py_None) return Answer::kNo;
    result = Ref::take(as_new_array(result.give()));
    if (!result) return Answer::kError;
    results[static_cast<size_t>(i)] = std::move(result);
  }
  if (!retain_ && (versions.get() != Py_None || out.get() != Py_None)) {
    p.args.put(node, Py_NewRef(Py_None));
    p.out.put(node, Py_NewRef(Py_None));
  }
  return Answer::kDone;
}

// Call the formula that people wrote for one output.
Answer Pass::apply_function(int32_t index, PyObject* gradient, std::vector<Ref>& results,
                            Ref* given) {
  const FunctionLayout& f = function_layout;
  const Entry& entry = entries_[static_cast<size_t>(index)];
  PyObject* node = entry.node.get();
  bool runs = false;
  for (int32_t i = 0; i < entry.count; ++i) {
    runs = runs || is_wanted(targets_[static_cast<size_t>(entry.first + i)].index);
  }
  if (!runs) return Answer::kDone;
  PyObject* zeros = f.zeros.of(node);
  PyObject* shape = node_layout.shape.of(node);
  if (has_detours() || zeros == nullptr || !PyDict_CheckExact(zeros) ||
      PyDict_GET_SIZE(zeros) != 0 || shape == nullptr || shape == Py_None ||
      node_layout.dtype.of(node) == nullptr) {
    return Answer::kNo;
  }
  Ref ctx = Ref::share(f.ctx.of(node));
  if (!ctx) return Answer::kNo;
  if (PyTuple_CheckExact(ctx.get())) {  // nobody has asked for it yet
    ctx = Ref::take(PyObject_GetAttr(node, engine_objects.public_ctx));
    if (!ctx) return Answer::kError;
  }
  Ref formula = Ref::share(f.formula.of(node));
  if (Py_TYPE(ctx.get()) != f.context || !formula) return Answer::kNo;
  if (!no_record_.begin() || !quiet_.end()) return Answer::kError;
  *given = Ref::take(wrapped_gradient(gradient, node_layout.dtype.of(node)));
  if (!*given) return Answer::kError;
  const int recording = is_recording();  // a formula before may have switched it on for good
  if (recording < 0) return Answer::kError;
  Ref outer = Ref::share(f.tracked.of(ctx.get()));
  if (!outer) return Answer::kNo;
  f.tracked.put(ctx.get(), Py_NewRef(recording ? Py_True : Py_False));
  PyObject* arguments[] = {ctx.get(), given->get()};
  Ref found = Ref::take(PyObject_Vectorcall(formula.get(), arguments, 2, nullptr));
  f.tracked.put(ctx.get(), outer.give());
  if (!found) return Answer::kError;
  results.resize(static_cast<size_t>(entry.count));
  const bool is_tuple = PyTuple_Check(found.get());
  const bool is_sequence = is_tuple || PyList_Check(found.get());
  const Py_ssize_t count = is_sequence ? Py_SIZE(found.get()) : 1;
  if (count != entry.count) {
    found = Ref::take(PyObject_CallMethodOneArg(node, engine_objects.fitted, found.get()));
    if (!found) return Answer::kError;
    if (!PyList_CheckExact(found.get()) || PyList_GET_SIZE(found.get()) != entry.count) {
      PyErr_SetString(PyExc_SystemError, "expected one gradient per input");
      return Answer::kError;
    }
    for (int32_t i = 0; i < entry.count; ++i) {
      results[static_cast<size_t>(i)] = Ref::share(PyList_GET_ITEM(found.get(), i));
    }
  } else if (!is_sequence) {
    results[0] = std::move(found);
  } else {
    for (int32_t i = 0; i < entry.count; ++i) {
      // A gradient for an input that needs none is dropped unseen, as its type may be anything.
      if (targets_[static_cast<size_t>(entry.first + i)].index < 0) continue;
      results[static_cast<size_t>(i)] = Ref::share(is_tuple ? PyTuple_GET_ITEM(found.get(), i)
                                                            : PyList_GET_ITEM(found.get(), i));
    }
  }
  PyObject* saved = f.saved.of(ctx.get());
  if (!retain_ && saved != nullptr && saved != Py_None &&
      !(PyList_CheckExact(saved) && PyList_GET_SIZE(saved) == 0)) {
    Ref done = Ref::take(PyObject_CallMethodNoArgs(ctx.get(), engine_objects.free));
    if (!done) return Answer::kError;
  }
  return Answer::kDone;
}

PyObject* Pass::leaf_of(const Entry& entry) {
  PyObject* node = entry.node.get();
  PyObject* leaf = entry.kind == Kind::kLeaf ? node : engine_objects.variable.of(node);
  const bool plain = tensor_layout.is(leaf) && is_array(tensor_layout.array.of(leaf)) &&
                     dtype_in(tensor_layout.dtype, leaf) != nullptr;
  return plain ? leaf : nullptr;
}

// Tell whether nothing but its formula happens at a node, which is of a kind that is known here.
int Pass::is_bare(const Entry& entry) {
  if (entry.kind == Kind::kOther) return 0;
  if (entry.kind != Kind::kLeaf && node_layout.extras.of(entry.node.get()) != Py_None) return 0;
  if (entry.kind != Kind::kLeaf && entry.kind != Kind::kAccumulate) return 1;
  PyObject* leaf = leaf_of(entry);
  if (leaf == nullptr) return 0;
  Ref hooks = Ref::take(PyObject_GetAttr(leaf, engine_objects.hooks));
  return hooks ? hooks.get() == Py_None : -1;
}

// Add to the `grad` of a leaf.
Answer Pass::accumulate(const Entry& entry, Ref& gradient) {
  const EngineObjects& o = engine_objects;
  PyObject* leaf = leaf_of(entry);
  Accumulating lock;
  if (!lock) return Answer::kError;
  Ref present = Ref::take(PyObject_GetAttr(leaf, o.grad));
  if (!present) return Answer::kError;
  if (present.get() == Py_None) {
    gradient = owned_array(std::move(gradient));
    if (!gradient) return Answer::kError;
    Ref made = Ref::take(wrapped_gradient(gradient.get(), tensor_layout.dtype.of(leaf)));
    return made && PyObject_SetAttr(leaf, o.grad, made.get()) == 0 ? Answer::kDone : Answer::kError;
  }
  const int ordinary = is_ordinary(present.get());
  if (ordinary < 0) return Answer::kError;
  Ref total = Ref::share(tensor_layout.is(present.get()) ? tensor_layout.array.of(present.get())
                                                         : nullptr);
  if (!ordinary || PyArray_NDIM(as_array(total.get())) != PyArray_NDIM(as_array(gradient.get())) ||
      !PyArray_CompareLists(PyArray_DIMS(as_array(total.get())),
                            PyArray_DIMS(as_array(gradient.get())),
                            PyArray_NDIM(as_array(total.get())))) {
    return Answer::kNo;
  }
  Ref sum = Ref::take(add_arrays(total.get(), gradient.get(), total.get(), quiet_));
  return sum && bump_version(present.get()) ? Answer::kDone : Answer::kError;
}

// Let Python visit the node: hooks, captures, formulas on tensors.
bool Pass::apply_in_python(int32_t index, Ref gradient, std::vector<Ref>& results, Ref* given) {
  if (!begin_python()) return false;
  PyObject* node = node_of(index);
  if (node == nullptr) return false;
  Ref grads;
  if (PyList_CheckExact(gradient.get())) {
    grads = std::move(gradient);
  } else {
    grads = Ref::take(PyList_New(1));
    if (!grads) return false;
    PyList_SET_ITEM(grads.get(), 0, gradient.give());
  }
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(grads.get()); ++i) {
    PyObject* one = PyList_GET_ITEM(grads.get(), i);
    if (!PyArray_CheckExact(one)) continue;
    PyObject* tensor = PyObject_CallOneArg(engine_objects.wrap, one);
    if (tensor == nullptr || PyList_SetItem(grads.get(), i, tensor) != 0) return false;
  }
  if (!quiet_.end()) return false;  // people's code sees NumPy's state as they left it
  PyObject* useful = useful_ ? useful_.get() : Py_None;
  Ref found = Ref::take(PyObject_CallFunctionObjArgs(engine_objects.visit, state_.get(), node,
                                                     grads.get(), useful, nullptr));
  if (!found) return false;
  Ref sequence = Ref::take(PySequence_Fast(found.get(), "expected a sequence of gradients"));
  if (!sequence) return false;
  const Entry& entry = entries_[static_cast<size_t>(index)];
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(sequence.get());
  if (count != 0) {
    results.resize(static_cast<size_t>(entry.count));
    for (Py_ssize_t i = 0; i < count && i < entry.count; ++i) {
      results[static_cast<size_t>(i)] =
          Ref::share(PySequence_Fast_GET_ITEM(sequence.get(), i));
    }
  }
  *given = std::move(grads);
  return true;
}

// Tell whether an array has shape and type of an output, which is the first of its node.
bool Pass::fits(int32_t index, int32_t output_nr, PyArrayObject* array, PyObject* dtype) {
  const Entry& entry = entries_[static_cast<size_t>(index)];
  PyObject* node = entry.node.get();
  if (output_nr != 0) return false;
  PyObject* wanted;
  if (entry.kind == Kind::kLeaf) {
    if (!is_array(tensor_layout.array.of(node))) return false;  // any more
    PyArrayObject* leaf = as_array(tensor_layout.array.of(node));
    if (PyArray_NDIM(leaf) != PyArray_NDIM(array) ||
        !PyArray_CompareLists(PyArray_DIMS(leaf), PyArray_DIMS(array), PyArray_NDIM(leaf))) {
      return false;
    }
    wanted = dtype_in(tensor_layout.dtype, node);
  } else {
    PyObject* shape = node_layout.shape.of(node);
    if (shape == nullptr || shape == Py_None || !has_shape(array, shape)) return false;
    wanted = dtype_in(node_layout.dtype, node);
  }
  if (dtype != nullptr) return dtype == wanted;
  return wanted != nullptr && engine_objects.descr.of(wanted) ==
                                  reinterpret_cast<PyObject*>(PyArray_DESCR(array));
}

// Return the sum of two gradients, in the memory of `out` if that is an array.
Ref Pass::sum(PyObject* a, PyObject* b, PyObject* out) {
  if (PyArray_CheckExact(a) && PyArray_CheckExact(b)) {
    return Ref::take(add_arrays(a, b, out, quiet_));
  }
  Ref pair[2];
  for (int i = 0; i < 2; ++i) {
    PyObject* one = i == 0 ? a : b;
    pair[i] = PyArray_CheckExact(one) ? Ref::take(PyObject_CallOneArg(engine_objects.wrap, one))
                                      : Ref::share(one);
    if (!pair[i]) return Ref();
  }
  if (!no_record_.begin()) return Ref();
  return Ref::take(PyNumber_Add(pair[0].get(), pair[1].get()));
}

// Add a gradient, which has shape and type of the output, to what is there.
bool Pass::deliver(int32_t index, int32_t output_nr, Ref value) {
  Entry& entry = entries_[static_cast<size_t>(index)];
  PyObject* outputs =
      entry.kind == Kind::kLeaf ? Py_None : node_layout.outputs.of(entry.node.get());
  if (outputs == nullptr) {
    PyErr_SetString(PyExc_AttributeError, "_outputs");
    return false;
  }
  const Py_ssize_t count = outputs == Py_None ? 1 : PySequence_Size(outputs);
  if (count < 0) return false;
  if (count > 1) {
    if (!entry.gradient) {
      entry.gradient = Ref::take(PyList_New(count));
      if (!entry.gradient) return false;
      for (Py_ssize_t i = 0; i < count; ++i) {
        PyList_SET_ITEM(entry.gradient.get(), i, Py_NewRef(Py_None));
      }
    }
    PyObject* list = entry.gradient.get();
    Ref before = Ref::share(PyList_GetItem(list, output_nr));
    if (!before) return false;
    if (before.get() != Py_None) value = sum(before.get(), value.get(), nullptr);
    return value && PyList_SetItem(list, output_nr, value.give()) == 0;
  }
  if (!entry.gradient) {
    entry.gradient = std::move(value);
    return true;
  }
  const bool grows = entry.own && PyArray_CheckExact(entry.gradient.get()) &&
                     PyArray_CheckExact(value.get());
  Ref total = sum(entry.gradient.get(), value.get(), grows ? entry.gradient.get() : nullptr);
  if (!total) return false;
  entry.own = PyArray_CheckExact(total.get());
  entry.gradient = std::move(total);
  return true;
}

bool FunctionLayout::place(PyTypeObject* node_type, PyTypeObject* context_type) {
  for (Slot* slot : {&ctx, &maker, &formula, &given, &zeros}) {
    if (!slot->place(node_type)) return false;
  }
  for (Slot* slot :
       {&needs_input_grad, &to_save, &for_forward, &saved, &freed, &node_reference, &dirty,
        &non_differentiable, &materialize, &in_jvp, &level, &input_ids, &computed, &tracked}) {
    if (!slot->place(context_type)) return false;
  }
  node = reinterpret_cast<PyTypeObject*>(Py_NewRef(node_type));
  context = reinterpret_cast<PyTypeObject*>(Py_NewRef(context_type));
  return true;
}

PyObject* configure_functions(PyObject*, PyObject* args) {
  PyTypeObject *node, *context;
  if (!PyArg_ParseTuple(args, "O!O!", &PyType_Type, &node, &PyType_Type, &context)) return nullptr;
  if (!function_layout.place(node, context)) return nullptr;
  Py_RETURN_NONE;
}

}  // namespace tensorplay

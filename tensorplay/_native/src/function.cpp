// Calls of a user's `Function` with plain tensors and other things, one new tensor as result.
//
// `tensorplay.autograd.function` is the reference. Before `forward` runs, anything unusual is left to
// Python; afterwards, Python finishes what is more than one new tensor on memory of its own.
#include "engine.h"

namespace tensorplay {
namespace {

// tensorplay.autograd.saved_tensors.SavedTensor
struct SavedLayout {
  PyTypeObject* type = nullptr;
  Slot had_history{"_had_history"}, output_nr{"_output_nr"}, packed{"_packed"}, tensor{"_tensor"},
      version{"_version"}, wants_grad{"_wants_grad"}, computed{"computed"};

  bool place(PyTypeObject* of) {
    for (Slot* slot :
         {&had_history, &output_nr, &packed, &tensor, &version, &wants_grad, &computed}) {
      if (!slot->place(of)) return false;
    }
    type = reinterpret_cast<PyTypeObject*>(Py_NewRef(of));
    return true;
  }
};

SavedLayout saved_layout;

// Set by `configure_apply`; they live as long as the process.
PyObject* base_setup = nullptr;     // Function.setup_context
PyObject* base_backward = nullptr;  // Function.backward
PyObject* takes_more = nullptr;     // whether a forward has more parameters than are given
PyObject* finish = nullptr;
PyObject* open_hooks = nullptr;  // a list; empty means that saved tensors are kept as they are
PyObject* no_node = nullptr;
PyObject* miss = nullptr;
PyObject* no_zeros = nullptr;
Slot category{"category"};  // of the runtime's element types
long first_differentiable = 0;

PyObject* name_setup_context = nullptr;
PyObject* name_forward = nullptr;
PyObject* name_backward = nullptr;
PyObject* name_vjp = nullptr;
PyObject* name_detach = nullptr;
PyObject* name_keep_for_one = nullptr;
PyObject* empty_tuple = nullptr;
PyObject* empty_set = nullptr;

bool is_differentiable(PyObject* tensor) {
  PyObject* dtype = dtype_in(tensor_layout.dtype, tensor);
  PyObject* number = dtype == nullptr ? nullptr : category.of(dtype);
  return number != nullptr && PyLong_AsLong(number) >= first_differentiable;
}

// Return a context in the state of a new one.
Ref new_context(PyObject* needs) {
  const FunctionLayout& f = function_layout;
  Ref made = Ref::take(f.context->tp_alloc(f.context, 0));
  if (!made) return made;
  PyObject* ctx = made.get();
  PyObject* computed = PyDict_New();
  if (computed == nullptr) return Ref();
  f.computed.fill(ctx, computed);
  f.needs_input_grad.fill(ctx, Py_NewRef(needs));
  for (const Slot* slot : {&f.to_save, &f.for_forward, &f.dirty, &f.non_differentiable}) {
    slot->fill(ctx, Py_NewRef(empty_tuple));
  }
  for (const Slot* slot : {&f.freed, &f.in_jvp, &f.tracked}) slot->fill(ctx, Py_NewRef(Py_False));
  for (const Slot* slot : {&f.saved, &f.level}) slot->fill(ctx, Py_NewRef(Py_None));
  f.materialize.fill(ctx, Py_NewRef(Py_True));
  f.node_reference.fill(ctx, Py_NewRef(no_node));
  f.input_ids.fill(ctx, Py_NewRef(empty_set));
  return made;
}

// Where the gradient of an argument goes, in the least form: a new reference, or null with an error.
PyObject* source_of(PyObject* value) {
  const TensorLayout& t = tensor_layout;
  if (!t.is(value)) return Py_NewRef(Py_None);
  PyObject* node = t.grad_fn.read(value);
  if (node == nullptr) return nullptr;
  if (node == Py_None) return Py_NewRef(t.requires_grad.of(value) == Py_True ? value : Py_None);
  const long number = PyLong_AsLong(t.output_nr.of(value));
  if (number == 0) return Py_NewRef(node);
  if (number == -1 && PyErr_Occurred()) return nullptr;
  Ref fields = Ref::take(PyTuple_Pack(2, node, t.output_nr.of(value)));
  if (!fields) return nullptr;
  Ref packed = Ref::take(PyTuple_Pack(1, fields.get()));
  // As `tuple.__new__(Edge, fields)`, without the Python code of the class.
  return packed ? PyTuple_Type.tp_new(edge_type, packed.get(), nullptr) : nullptr;
}

// Return a saved tensor for what a context keeps, or None; null with an error set.
PyObject* save(PyObject* tensor, PyObject* output, PyObject* args) {
  if (tensor == Py_None) return Py_NewRef(Py_None);
  const TensorLayout& t = tensor_layout;
  const SavedLayout& s = saved_layout;
  Ref made = Ref::take(s.type->tp_alloc(s.type, 0));
  if (!made) return nullptr;
  const bool is_output = tensor == output;
  PyObject* counter = t.counter.of(tensor);
  PyObject* version = counter == Py_None ? zero() : counter_layout.value.read(counter);
  Ref kept = is_output ? Ref::take(PyObject_CallMethodNoArgs(tensor, name_detach))
                       : Ref::share(tensor);
  if (version == nullptr || !kept) return nullptr;
  const bool wants_grad = t.requires_grad.of(tensor) == Py_True;
  bool computed = !is_output && !wants_grad && is_differentiable(tensor);
  for (Py_ssize_t i = 0; computed && i < PyTuple_GET_SIZE(args); ++i) {
    computed = PyTuple_GET_ITEM(args, i) != tensor;
  }
  const bool had_history = !is_output && t.grad_fn.of(tensor) != Py_None;
  s.version.fill(made.get(), Py_NewRef(version));
  s.tensor.fill(made.get(), kept.give());
  s.output_nr.fill(made.get(), Py_NewRef(is_output ? zero() : Py_None));
  s.wants_grad.fill(made.get(), Py_NewRef(wants_grad ? Py_True : Py_False));
  s.had_history.fill(made.get(), Py_NewRef(had_history ? Py_True : Py_False));
  s.packed.fill(made.get(), Py_NewRef(Py_None));
  s.computed.fill(made.get(), Py_NewRef(computed ? Py_True : Py_False));
  return made.give();
}

// Whether what a context is to keep is simple: -1 with an error set.
int is_simple(PyObject* ctx) {
  PyObject* to_save = function_layout.to_save.of(ctx);
  if (PyTuple_GET_SIZE(to_save) != 0 && PyList_GET_SIZE(open_hooks) != 0) return 0;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(to_save); ++i) {
    PyObject* tensor = PyTuple_GET_ITEM(to_save, i);
    if (tensor == Py_None) continue;
    if (!tensor_layout.is(tensor)) return 0;
    // The counter of another kind belongs to a tensor of inference mode, or to one that moved.
    PyObject* counter = tensor_layout.counter.of(tensor);
    if (counter != Py_None && !counter_layout.is(counter)) return 0;
  }
  Ref attributes = Ref::take(PyObject_GenericGetDict(ctx, nullptr));
  if (!attributes) return -1;
  Py_ssize_t position = 0;
  PyObject *key, *value;
  while (PyDict_Next(attributes.get(), &position, &key, &value)) {
    if (value != Py_None && !PyLong_CheckExact(value) && !PyFloat_CheckExact(value) &&
        !PyBool_Check(value) && !PyUnicode_CheckExact(value)) {
      return 0;
    }
  }
  return 1;
}

// Do what `FunctionContext._keep_for_one` does.
bool keep_for_one(PyObject* ctx, PyObject* node, PyObject* output, PyObject* args) {
  const FunctionLayout& f = function_layout;
  const int simple = is_simple(ctx);
  if (simple < 0) return false;
  if (simple == 0) {
    Ref ids = Ref::take(PySet_New(nullptr));
    if (!ids) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); ++i) {
      PyObject* value = PyTuple_GET_ITEM(args, i);
      if (!tensor_layout.is(value)) continue;
      Ref id = Ref::take(PyLong_FromVoidPtr(value));
      if (!id || PySet_Add(ids.get(), id.get()) != 0) return false;
    }
    Ref frozen = Ref::take(PyFrozenSet_New(ids.get()));
    if (!frozen) return false;
    f.input_ids.put(ctx, frozen.give());
    return static_cast<bool>(Ref::take(
        PyObject_CallMethodObjArgs(ctx, name_keep_for_one, node, output, nullptr)));
  }
  PyObject* reference = PyWeakref_NewRef(node, nullptr);
  if (reference == nullptr) return false;
  f.node_reference.put(ctx, reference);
  Ref to_save = Ref::share(f.to_save.of(ctx));
  Ref saved = Ref::take(PyList_New(PyTuple_GET_SIZE(to_save.get())));
  if (!saved) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(to_save.get()); ++i) {
    PyObject* one = save(PyTuple_GET_ITEM(to_save.get(), i), output, args);
    if (one == nullptr) return false;
    PyList_SET_ITEM(saved.get(), i, one);
  }
  f.saved.put(ctx, saved.give());
  f.to_save.put(ctx, Py_NewRef(empty_tuple));
  return true;
}

// Make a node the history of the only output. A tuple in the place of a context says which inputs need
// gradients, until somebody asks for the context.
bool record(PyObject* maker, PyObject* ctx, PyObject* formula, PyObject* args, PyObject* output) {
  const FunctionLayout& f = function_layout;
  const TensorLayout& t = tensor_layout;
  PyArrayObject* array = as_array(t.array.of(output));
  Ref shape = Ref::take(PyArray_IntTupleFromIntp(PyArray_NDIM(array), PyArray_DIMS(array)));
  const Py_ssize_t count = PyTuple_GET_SIZE(args);
  Ref sources = Ref::take(PyList_New(count));
  Ref given = Ref::take(PyLong_FromSsize_t(count));
  Ref made = Ref::take(f.node->tp_alloc(f.node, 0));
  if (!shape || !sources || !given || !made) return false;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* source = source_of(PyTuple_GET_ITEM(args, i));
    if (source == nullptr) return false;
    PyList_SET_ITEM(sources.get(), i, source);
  }
  Ref sequence = Ref::take(next_sequence());
  if (!sequence) return false;
  PyObject* node = made.get();
  node_layout.dtype.fill(node, Py_NewRef(t.dtype.of(output)));
  node_layout.extras.fill(node, Py_NewRef(Py_None));
  node_layout.outputs.fill(node, Py_NewRef(Py_None));
  node_layout.shape.fill(node, shape.give());
  node_layout.sources.fill(node, sources.give());
  node_layout.sequence.fill(node, sequence.give());
  f.ctx.fill(node, Py_NewRef(ctx));
  f.maker.fill(node, Py_NewRef(maker));
  f.formula.fill(node, Py_NewRef(formula));
  f.given.fill(node, given.give());
  f.zeros.fill(node, Py_NewRef(no_zeros));
  if (!PyTuple_CheckExact(ctx) && !keep_for_one(ctx, node, output, args)) return false;
  t.grad_fn.put(output, made.give());
  t.output_nr.put(output, Py_NewRef(zero()));
  t.requires_grad.put(output, Py_NewRef(Py_True));
  return true;
}

bool record_function(PyObject* cls, PyObject* ctx, PyObject* args, PyObject* output) {
  Ref formula = Ref::take(PyObject_GetAttr(cls, name_backward));
  if (formula && formula.get() == base_backward) {
    formula = Ref::take(PyObject_GetAttr(cls, name_vjp));
  }
  return formula && record(cls, ctx, formula.get(), args, output);
}

// Which arguments need gradients: a tuple of bools.
Ref needs_of(PyObject* args) {
  const Py_ssize_t count = PyTuple_GET_SIZE(args);
  Ref needs = Ref::take(PyTuple_New(count));
  for (Py_ssize_t i = 0; needs && i < count; ++i) {
    PyObject* value = PyTuple_GET_ITEM(args, i);
    const bool need =
        tensor_layout.is(value) && tensor_layout.requires_grad.of(value) == Py_True;
    PyTuple_SET_ITEM(needs.get(), i, Py_NewRef(need ? Py_True : Py_False));
  }
  return needs;
}

// Whether a result of `forward` is one new tensor, of which nothing is known but its elements.
bool is_new(PyObject* output, PyObject* ctx, PyObject* args) {
  const TensorLayout& t = tensor_layout;
  const FunctionLayout& f = function_layout;
  if (!is_plain(output) || t.base.of(output) != Py_None || t.grad_fn.of(output) != Py_None ||
      !is_differentiable(output)) {
    return false;
  }
  for (const Slot* slot : {&f.dirty, &f.non_differentiable, &f.to_save}) {
    PyObject* found = slot->of(ctx);
    if (found == nullptr || !PyTuple_CheckExact(found)) return false;
    if (slot != &f.to_save && PyTuple_GET_SIZE(found) != 0) return false;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); ++i) {
    PyObject* value = PyTuple_GET_ITEM(args, i);
    if (value == output || (t.is(value) && t.base.of(value) == output)) return false;
  }
  return true;
}

// Call forward, and the set-up in the separate style; a new reference.
Ref call_forward(PyObject* cls, PyObject* ctx, PyObject* args, PyObject* forward,
                 PyObject* setup) {
  const Py_ssize_t count = PyTuple_GET_SIZE(args);
  if (setup == base_setup) {
    constexpr Py_ssize_t kFew = 8;
    PyObject* few[kFew + 1];
    std::vector<PyObject*> many(count > kFew ? static_cast<size_t>(count) + 1 : 0);
    PyObject** given = many.empty() ? few : many.data();
    given[0] = ctx;
    for (Py_ssize_t i = 0; i < count; ++i) given[i + 1] = PyTuple_GET_ITEM(args, i);
    return Ref::take(
        PyObject_Vectorcall(forward, given, static_cast<size_t>(count) + 1, nullptr));
  }
  Ref output = Ref::take(PyObject_Call(forward, args, nullptr));
  if (!output) return output;
  Ref bound = Ref::take(PyObject_GetAttr(cls, name_setup_context));  // as forward left it
  if (!bound) return Ref();
  Ref done = Ref::take(
      PyObject_CallFunctionObjArgs(bound.get(), ctx, args, output.get(), nullptr));
  return done ? std::move(output) : Ref();
}

}  // namespace

// Call a function and record it; `miss` for calls that are Python's, before anything ran.
PyObject* apply_plainly(PyObject*, PyObject* const* arguments, Py_ssize_t argument_count) {
  const TensorLayout& t = tensor_layout;
  if (argument_count != 2 || !PyTuple_CheckExact(arguments[1])) {
    PyErr_SetString(PyExc_TypeError, "apply_plainly(cls, args)");
    return nullptr;
  }
  PyObject* cls = arguments[0];
  PyObject* args = arguments[1];
  if (!is_engine_ready() || has_detours()) return Py_NewRef(miss);
  const Py_ssize_t count = PyTuple_GET_SIZE(args);
  bool recording = false;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* value = PyTuple_GET_ITEM(args, i);
    if (!t.is(value)) {
      if (PyObject_TypeCheck(value, t.type)) return Py_NewRef(miss);  // of samples, or a subclass
      continue;
    }
    if (t.base.of(value) != Py_None) {  // its history may have changed through the base
      Ref done = Ref::take(PyObject_CallMethodNoArgs(value, engine_objects.synchronise));
      if (!done) return nullptr;
    }
    if (t.tangent.of(value) != Py_None) return Py_NewRef(miss);
    recording = recording || t.requires_grad.of(value) == Py_True;
  }
  Ref setup = Ref::take(PyObject_GetAttr(cls, name_setup_context));
  Ref forward = Ref::take(PyObject_GetAttr(cls, name_forward));
  if (!setup || !forward) return nullptr;
  if (setup.get() != base_setup) {
    Ref number = Ref::take(PyLong_FromSsize_t(count));
    Ref more = number ? Ref::take(PyObject_CallFunctionObjArgs(takes_more, forward.get(),
                                                               number.get(), nullptr))
                      : Ref();
    if (!more) return nullptr;
    if (more.get() != Py_False) return Py_NewRef(miss);  // defaults are to be filled in
  }
  Ref needs = needs_of(args);
  Ref ctx = needs ? new_context(needs.get()) : Ref();
  if (!ctx) return nullptr;
  Ref output;
  {
    NoRecord no_record;
    if (!no_record.begin()) return nullptr;
    recording = recording && no_record.was_on();
    output = call_forward(cls, ctx.get(), args, forward.get(), setup.get());
  }
  if (!output) return nullptr;
  if (is_new(output.get(), ctx.get(), args)) {
    return !recording || record_function(cls, ctx.get(), args, output.get()) ? output.give() : nullptr;
  }
  return PyObject_CallFunctionObjArgs(finish, cls, ctx.get(), args, output.get(),
                                      recording ? Py_True : Py_False, nullptr);
}

PyObject* record_call(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 5 || !PyTuple_CheckExact(args[3]) || !tensor_layout.is(args[4]) ||
      !is_array(tensor_layout.array.of(args[4])) ||
      dtype_in(tensor_layout.dtype, args[4]) == nullptr) {
    PyErr_SetString(PyExc_TypeError, "record_call(maker, ctx, formula, inputs, output)");
    return nullptr;
  }
  if (args[1] != Py_None && Py_TYPE(args[1]) != function_layout.context) {
    PyErr_SetString(PyExc_TypeError, "expected a context of functions");
    return nullptr;
  }
  Ref ctx = args[1] == Py_None ? needs_of(args[3]) : Ref::share(args[1]);
  if (!ctx || !record(args[0], ctx.get(), args[2], args[3], args[4])) return nullptr;
  Py_RETURN_NONE;
}

PyObject* configure_apply(PyObject*, PyObject* args) {
  PyTypeObject *function, *saved, *dtype;
  PyObject *more, *end, *hooks, *node, *missing, *zeros;
  if (!PyArg_ParseTuple(args, "O!O!O!lOOO!OOO!", &PyType_Type, &function, &PyType_Type, &saved,
                        &PyType_Type, &dtype, &first_differentiable, &more, &end, &PyList_Type,
                        &hooks, &node, &missing, &PyDict_Type, &zeros)) {
    return nullptr;
  }
  const std::pair<PyObject**, const char*> names[] = {
      {&name_setup_context, "setup_context"}, {&name_forward, "forward"},
      {&name_backward, "backward"},           {&name_vjp, "vjp"},
      {&name_detach, "detach"},               {&name_keep_for_one, "_keep_for_one"},
  };
  for (const auto& [place, text] : names) {
    if (*place == nullptr && (*place = PyUnicode_InternFromString(text)) == nullptr) return nullptr;
  }
  if (!saved_layout.place(saved) || !category.place(dtype)) return nullptr;
  PyObject* cls = reinterpret_cast<PyObject*>(function);
  base_setup = PyObject_GetAttr(cls, name_setup_context);
  base_backward = PyObject_GetAttr(cls, name_backward);
  empty_tuple = PyTuple_New(0);
  empty_set = PyFrozenSet_New(nullptr);
  if (base_setup == nullptr || base_backward == nullptr || empty_tuple == nullptr ||
      empty_set == nullptr) {
    return nullptr;
  }
  takes_more = Py_NewRef(more);
  finish = Py_NewRef(end);
  open_hooks = Py_NewRef(hooks);
  no_node = Py_NewRef(node);
  miss = Py_NewRef(missing);
  no_zeros = Py_NewRef(zeros);
  Py_RETURN_NONE;
}

}  // namespace tensorplay

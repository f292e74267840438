// The way of a reverse pass through a graph: see engine.h.
#include "engine.h"

#include <algorithm>
#include <limits>
#include <new>

namespace tensorplay {

EngineObjects engine_objects;

namespace {

// Of a node that leads nowhere: it can run as soon as its gradient is complete.
constexpr int64_t kAtOnce = std::numeric_limits<int64_t>::max();

// How many nodes run between looks at signals.
constexpr int kNodesBetweenSignals = 1024;

size_t place_in(PyObject* key, size_t mask) {
  const auto address = reinterpret_cast<uintptr_t>(key);
  return static_cast<size_t>((address >> 4) * 0x9E3779B97F4A7C15ull >> 20) & mask;
}

// Take a plain root: where it starts and with which elements. kNo for others.
Answer read_root(PyObject* pair, Root* out) {
  if (!PyTuple_CheckExact(pair) || PyTuple_GET_SIZE(pair) != 2) return Answer::kNo;
  PyObject* edge = PyTuple_GET_ITEM(pair, 0);
  PyObject* gradient = PyTuple_GET_ITEM(pair, 1);
  if (!is_edge(edge) || !is_plain(gradient)) return Answer::kNo;
  out->node = Ref::share(PyTuple_GET_ITEM(edge, 0));
  out->output_nr = PyLong_AsSsize_t(PyTuple_GET_ITEM(edge, 1));
  if (out->output_nr == -1 && PyErr_Occurred()) return Answer::kError;
  out->array = Ref::share(tensor_layout.array.of(gradient));
  return Answer::kDone;
}

// Return the `AccumulateGrad` of a leaf, None where there is none; null with an error set.
Ref accumulator_of(PyObject* leaf) {
  Ref reference = Ref::take(PyObject_GetAttr(leaf, engine_objects.accumulator));
  if (!reference || reference.get() == Py_None) return reference;
  return Ref::take(PyObject_CallNoArgs(reference.get()));
}

}  // namespace

// --- the graph ---------------------------------------------------------------------------------

int32_t Pass::find(PyObject* key) {
  if (table_.empty()) return -1;
  const size_t mask = table_.size() - 1;
  for (size_t i = place_in(key, mask);; i = (i + 1) & mask) {
    const int32_t index = table_[i];
    if (index < 0 || entries_[static_cast<size_t>(index)].node.get() == key) return index;
  }
}

void Pass::insert(PyObject* key, int32_t index) {
  if (table_.size() < 2 * (entries_.size() + 1)) {
    table_.assign(std::max<size_t>(64, 4 * table_.size()), -1);
    const size_t mask = table_.size() - 1;
    for (size_t n = 0; n < entries_.size(); ++n) {
      size_t i = place_in(entries_[n].node.get(), mask);
      while (table_[i] >= 0) i = (i + 1) & mask;
      table_[i] = static_cast<int32_t>(n);
    }
    return;  // with the entry of `key`, which is among them
  }
  const size_t mask = table_.size() - 1;
  size_t i = place_in(key, mask);
  while (table_[i] >= 0) i = (i + 1) & mask;
  table_[i] = index;
}

Answer Pass::enter(PyObject* node, int32_t* out) {
  *out = find(node);
  if (*out >= 0) return Answer::kDone;
  if (entries_.size() >= static_cast<size_t>(std::numeric_limits<int32_t>::max() / 2) ||
      !PyObject_TypeCheck(node, node_layout.type)) {
    return Answer::kNo;
  }
  Entry made;
  made.node = Ref::share(node);
  PyObject* sequence = node_layout.sequence.of(node);
  if (sequence == nullptr || node_layout.sources.of(node) == nullptr) return Answer::kNo;
  made.sequence = PyLong_AsLongLong(sequence);
  if (made.sequence == -1 && PyErr_Occurred()) return Answer::kError;
  PyTypeObject* type = Py_TYPE(node);
  made.kind = type == primitive_node_layout.type          ? Kind::kPrimitive
              : type == engine_objects.accumulate_type    ? Kind::kAccumulate
              : type == function_layout.node              ? Kind::kFunction
              : type == engine_objects.compiled_type      ? Kind::kCompiled
                                                          : Kind::kOther;
  *out = static_cast<int32_t>(entries_.size());
  entries_.push_back(std::move(made));
  insert(node, *out);
  return Answer::kDone;
}

// The leaf itself stands for its `AccumulateGrad` where there is none, and nothing asks for one.
Answer Pass::enter_leaf(PyObject* leaf, int32_t* out) {
  *out = find(leaf);
  if (*out >= 0) return Answer::kDone;
  Ref node = accumulator_of(leaf);
  if (!node) return Answer::kError;
  if (node.get() != Py_None) return enter(node.get(), out);
  Ref hooks = Ref::take(PyObject_GetAttr(leaf, engine_objects.hooks));
  if (!hooks) return Answer::kError;
  if (hooks.get() != Py_None || !is_array(tensor_layout.array.of(leaf))) {
    node = Ref::take(PyObject_CallOneArg(engine_objects.accumulator_of, leaf));
    return node ? enter(node.get(), out) : Answer::kError;
  }
  Entry made;
  made.node = Ref::share(leaf);
  made.kind = Kind::kLeaf;
  made.sequence = kAtOnce;
  *out = static_cast<int32_t>(entries_.size());
  entries_.push_back(std::move(made));
  insert(leaf, *out);
  return Answer::kDone;
}

Answer Pass::enter_source(PyObject* source, Target* out) {
  *out = {-1, 0};
  if (source == Py_None) return Answer::kDone;
  if (is_edge(source)) {
    const Py_ssize_t number = PyLong_AsSsize_t(PyTuple_GET_ITEM(source, 1));
    if (number == -1 && PyErr_Occurred()) return Answer::kError;
    out->output_nr = static_cast<int32_t>(number);
    return enter(PyTuple_GET_ITEM(source, 0), &out->index);
  }
  if (tensor_layout.is(source)) return enter_leaf(source, &out->index);
  if (PyObject_TypeCheck(source, tensor_layout.type)) {  // a leaf whose class was changed
    Ref node = Ref::take(PyObject_CallOneArg(engine_objects.accumulator_of, source));
    return node ? enter(node.get(), &out->index) : Answer::kError;
  }
  return enter(source, &out->index);
}

// Enter what a node leads to.
Answer Pass::walk(int32_t index) {
  const auto n = static_cast<size_t>(index);
  entries_[n].first = static_cast<int32_t>(targets_.size());
  if (entries_[n].kind == Kind::kLeaf) return Answer::kDone;
  Ref sources = Ref::share(node_layout.sources.of(entries_[n].node.get()));
  const bool is_tuple = PyTuple_CheckExact(sources.get());
  if (!is_tuple && !PyList_CheckExact(sources.get())) return Answer::kNo;
  const Py_ssize_t count = Py_SIZE(sources.get());
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (i >= Py_SIZE(sources.get())) return Answer::kNo;  // not reached: a list that shrank
    Ref source = Ref::share(is_tuple ? PyTuple_GET_ITEM(sources.get(), i)
                                     : PyList_GET_ITEM(sources.get(), i));
    Target target;
    const Answer answer = enter_source(source.get(), &target);
    if (answer != Answer::kDone) return answer;
    if (target.index >= 0) ++entries_[static_cast<size_t>(target.index)].pending;
    targets_.push_back(target);
  }
  entries_[n].count = static_cast<int32_t>(count);
  return Answer::kDone;
}

Answer Pass::discover(const std::vector<Root>& roots) {
  for (const Root& root : roots) {
    int32_t index;
    const Answer answer = enter(root.node.get(), &index);
    if (answer != Answer::kDone) return answer;
  }
  for (size_t n = 0; n < entries_.size(); ++n) {  // grows while it is walked
    const Answer answer = walk(static_cast<int32_t>(n));
    if (answer != Answer::kDone) return answer;
  }
  return inputs_ == Py_None ? Answer::kDone : want_inputs();
}

// Find out which nodes lead to the inputs, and where gradients are to be kept.
Answer Pass::want_inputs() {
  const Py_ssize_t count = PyList_GET_SIZE(inputs_);
  for (Entry& entry : entries_) entry.useful = false;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* edge = PyList_GET_ITEM(inputs_, i);
    if (!is_edge(edge)) return Answer::kNo;
    const int32_t index = find(PyTuple_GET_ITEM(edge, 0));
    if (index < 0) continue;
    const Py_ssize_t number = PyLong_AsSsize_t(PyTuple_GET_ITEM(edge, 1));
    if (number == -1 && PyErr_Occurred()) return Answer::kError;
    Entry& entry = entries_[static_cast<size_t>(index)];
    entry.useful = true;
    // In the order of the inputs, which is that of their positions: the last is put last.
    int32_t* last = &entry.capture;
    while (*last >= 0) last = &captures_[static_cast<size_t>(*last)].next;
    const auto made = static_cast<int32_t>(captures_.size());
    *last = made;
    captures_.push_back({static_cast<int32_t>(number), static_cast<int32_t>(i), -1});
  }
  // A node is newer than all that it leads to, so one sweep from old to new settles it.
  std::vector<int32_t> order;
  for (size_t n = 0; n < entries_.size(); ++n) {
    if (entries_[n].count > 0) order.push_back(static_cast<int32_t>(n));
  }
  std::sort(order.begin(), order.end(), [this](int32_t a, int32_t b) {
    return entries_[static_cast<size_t>(a)].sequence < entries_[static_cast<size_t>(b)].sequence;
  });
  for (const int32_t n : order) {
    Entry& entry = entries_[static_cast<size_t>(n)];
    for (int32_t i = 0; !entry.useful && i < entry.count; ++i) {
      const int32_t target = targets_[static_cast<size_t>(entry.first + i)].index;
      entry.useful = target >= 0 && entries_[static_cast<size_t>(target)].useful;
    }
  }
  return Answer::kDone;
}

// --- the pass ----------------------------------------------------------------------------------

Pass::~Pass() {
  if (!passes_) return;
  // Not by a function of Python's: an interrupt would arrive in it, and end up nowhere.
  PyObject *kind, *error, *traceback;
  PyErr_Fetch(&kind, &error, &traceback);
  const Py_ssize_t count = PyList_GET_SIZE(passes_.get());
  if (count > 0 && PyList_SetSlice(passes_.get(), count - 1, count, nullptr) != 0) {
    PyErr_WriteUnraisable(passes_.get());
  }
  PyErr_Restore(kind, error, traceback);
}

Answer Pass::run(const std::vector<Root>& roots) {
  try {
    return run_all(roots);
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
    return Answer::kError;
  }
}

Answer Pass::run_all(const std::vector<Root>& roots) {
  entries_.reserve(64);
  targets_.reserve(64);
  const Py_ssize_t count = inputs_ == Py_None ? 0 : PyList_GET_SIZE(inputs_);
  captured_ = Ref::take(PyList_New(count));
  if (!captured_) return Answer::kError;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyList_SET_ITEM(captured_.get(), i, Py_NewRef(Py_None));
  }
  const Answer answer = discover(roots);
  if (answer != Answer::kDone) return answer;
  for (const Root& root : roots) {
    const auto number = static_cast<int32_t>(root.output_nr);
    if (!deliver(find(root.node.get()), number, Ref::share(root.array.get()))) return Answer::kError;
  }
  return loop() && quiet_.end() ? Answer::kDone : Answer::kError;
}

PyObject* Pass::captured() { return captured_.give(); }

// Visit the nodes, newest first, each when all gradients that come its way are there.
bool Pass::loop() {
  using Ready = std::pair<int64_t, int32_t>;
  std::vector<Ready> ready;
  for (size_t n = 0; n < entries_.size(); ++n) {
    if (entries_[n].pending == 0) {
      ready.emplace_back(entries_[n].sequence, static_cast<int32_t>(n));
    }
  }
  std::make_heap(ready.begin(), ready.end());
  int32_t following = -1;  // the only node that is ready: no need to put it in order
  int visited = 0;
  std::vector<Ref> results;
  const auto push = [&](int32_t index) {
    ready.emplace_back(entries_[static_cast<size_t>(index)].sequence, index);
    std::push_heap(ready.begin(), ready.end());
  };
  while (following >= 0 || !ready.empty()) {
    int32_t index = following;
    following = -1;
    if (index < 0) {
      std::pop_heap(ready.begin(), ready.end());
      index = ready.back().second;
      ready.pop_back();
    }
    results.clear();
    if (!visit(index, results)) return false;
    const Entry& entry = entries_[static_cast<size_t>(index)];
    for (int32_t i = 0; i < entry.count; ++i) {
      const int32_t target = targets_[static_cast<size_t>(entry.first + i)].index;
      if (target < 0 || --entries_[static_cast<size_t>(target)].pending != 0) continue;
      if (following < 0 && ready.empty()) {
        following = target;
        continue;
      }
      if (following >= 0) push(following);
      following = -1;
      push(target);
    }
    if (++visited % kNodesBetweenSignals == 0 && PyErr_CheckSignals() != 0) return false;
  }
  return true;
}

// Keep the gradient of a node for those who wanted it; it stays what it is for the node.
bool Pass::capture(Entry& entry, Ref& gradient) {
  gradient = owned_array(std::move(gradient));
  if (!gradient) return false;
  PyObject* dtype = nullptr;
  PyObject* node = entry.node.get();
  if (entry.kind == Kind::kLeaf) {
    dtype = tensor_layout.dtype.read(node);
  } else {
    dtype = node_layout.dtype.read(node);
  }
  if (dtype == nullptr) return false;
  Ref tensor = Ref::take(wrapped_gradient(gradient.get(), dtype));
  if (!tensor) return false;
  for (int32_t n = entry.capture; n >= 0; n = captures_[static_cast<size_t>(n)].next) {
    const Py_ssize_t position = captures_[static_cast<size_t>(n)].position;
    PyList_SetItem(captured_.get(), position, Py_NewRef(tensor.get()));
  }
  return true;
}

// Run one node and hand its gradients on.
bool Pass::visit(int32_t index, std::vector<Ref>& results) {
  Entry& entry = entries_[static_cast<size_t>(index)];  // no entry is added any more
  Ref gradient = std::move(entry.gradient);
  if (!gradient || !entry.useful) return true;
  if (entry.kind == Kind::kLeaf) {  // a formula of this pass may have asked for the node
    Ref node = accumulator_of(entry.node.get());
    if (!node || (node.get() != Py_None && node_of(index) == nullptr)) return false;
  }
  Ref given;  // the gradient as a tensor, where there was one
  Answer answer = Answer::kNo;
  const int bare = PyArray_CheckExact(gradient.get()) ? is_bare(entry) : 0;
  if (bare < 0) return false;
  if (bare != 0) {
    // What is captured here and then handed to Python is captured twice, the same both times.
    if (entry.capture >= 0 && !capture(entry, gradient)) return false;
    if (entry.kind == Kind::kLeaf || entry.kind == Kind::kAccumulate) {
      answer = accumulate_ ? accumulate(entry, gradient) : Answer::kDone;
    } else if (entry.kind == Kind::kPrimitive) {
      answer = apply_primitive(index, gradient.get(), results);
    } else if (entry.kind == Kind::kCompiled) {
      answer = apply_compiled(index, gradient.get(), results);
    } else {
      answer = apply_function(index, gradient.get(), results, &given);
    }
  }
  if (answer == Answer::kError) return false;
  if (answer == Answer::kNo) {
    results.clear();
    if (!apply_in_python(index, std::move(gradient), results, &given)) return false;
  }
  return results.empty() || hand_on(index, results, given ? given.get() : gradient.get());
}

// Give the gradients of a node to what it leads to, as arrays where they are no more than that.
bool Pass::hand_on(int32_t index, std::vector<Ref>& results, PyObject* given) {
  const Entry& entry = entries_[static_cast<size_t>(index)];
  for (int32_t i = 0; i < entry.count; ++i) {
    const Target target = targets_[static_cast<size_t>(entry.first + i)];
    Ref result = std::move(results[static_cast<size_t>(i)]);
    if (target.index < 0 || !result || result.get() == Py_None) continue;
    bool fitting = false;
    if (PyArray_CheckExact(result.get())) {
      fitting = fits(target.index, target.output_nr, as_array(result.get()), nullptr);
    } else if (is_plain(result.get()) && !PyArray_CheckExact(given)) {
      PyObject* first = given;
      if (PyList_CheckExact(given)) {  // which people's code has seen
        first = PyList_GET_SIZE(given) == 0 ? nullptr : PyList_GET_ITEM(given, 0);
      }
      PyObject* array = tensor_layout.array.of(result.get());
      // A graph lies on one device, so gradients go out where they came in.
      fitting = tensor_layout.is(first) && is_array(tensor_layout.array.of(first)) &&
                fits(target.index, target.output_nr, as_array(array),
                     tensor_layout.dtype.of(result.get()));
      if (fitting) result = Ref::share(array);
    }
    if (!fitting) {
      PyObject* to = begin_python() ? node_of(target.index) : nullptr;
      Ref number = Ref::take(PyLong_FromLong(i));
      Ref output_nr = Ref::take(PyLong_FromLong(target.output_nr));
      if (to == nullptr || !number || !output_nr || !quiet_.begin()) return false;
      PyObject* from = entry.node.get();
      result = Ref::take(PyObject_CallFunctionObjArgs(
          engine_objects.checked, state_.get(), from, number.get(), to, output_nr.get(),
          result.get(), given, nullptr));
      if (!result) return false;
      if (result.get() == Py_None) continue;
    }
    if (!deliver(target.index, target.output_nr, std::move(result))) return false;
  }
  return true;
}

// --- what Python calls -------------------------------------------------------------------------

PyObject* run_backward(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 4 || !PyList_CheckExact(args[0])) {
    PyErr_SetString(PyExc_TypeError, "run_backward(roots, retain_graph, inputs, accumulate)");
    return nullptr;
  }
  PyObject* inputs = args[2];
  if (!is_engine_ready() || has_detours() || (inputs != Py_None && !PyList_CheckExact(inputs))) {
    Py_RETURN_NOTIMPLEMENTED;
  }
  std::vector<Root> roots(static_cast<size_t>(PyList_GET_SIZE(args[0])));
  for (size_t i = 0; i < roots.size(); ++i) {
    PyObject* pair = PyList_GET_ITEM(args[0], static_cast<Py_ssize_t>(i));
    const Answer answer = read_root(pair, &roots[i]);
    if (answer == Answer::kError) return nullptr;
    if (answer == Answer::kNo) Py_RETURN_NOTIMPLEMENTED;
  }
  Pass pass(PyObject_IsTrue(args[1]) == 1, PyObject_IsTrue(args[3]) == 1, inputs);
  switch (pass.run(roots)) {
    case Answer::kError: return nullptr;
    case Answer::kNo: Py_RETURN_NOTIMPLEMENTED;
    case Answer::kDone: break;
  }
  return pass.captured();
}

// Start from one plain tensor and return True; False if that is not what was asked for.
PyObject* backward_plainly(PyObject*, PyObject* const* args, Py_ssize_t count) {
  const TensorLayout& t = tensor_layout;
  if (count != 3) {
    PyErr_SetString(PyExc_TypeError, "backward_plainly(tensor, gradient, retain_graph)");
    return nullptr;
  }
  PyObject* tensor = args[0];
  PyObject* gradient = args[1];
  if (!is_engine_ready() || has_detours() || !t.is(tensor) ||
      !(args[2] == Py_None || PyBool_Check(args[2])) || t.tangent.of(tensor) != Py_None) {
    Py_RETURN_FALSE;
  }
  if (t.base.of(tensor) != Py_None) {
    Ref done = Ref::take(PyObject_CallMethodNoArgs(tensor, engine_objects.synchronise));
    if (!done) return nullptr;
  }
  PyObject* array = t.array.of(tensor);
  PyObject* node = t.grad_fn.of(tensor);
  if (node == nullptr || node == Py_None || !is_array(array)) Py_RETURN_FALSE;
  PyArrayObject* made = as_array(array);
  Ref start;
  if (gradient == Py_None) {
    const int type = PyArray_TYPE(made);
    if (PyArray_SIZE(made) != 1 || (type != NPY_FLOAT && type != NPY_DOUBLE)) Py_RETURN_FALSE;
    start = Ref::take(PyArray_SimpleNew(PyArray_NDIM(made), PyArray_DIMS(made), type));
    if (!start) return nullptr;
    void* element = PyArray_DATA(as_array(start.get()));
    if (type == NPY_FLOAT) {
      *static_cast<float*>(element) = 1;
    } else {
      *static_cast<double*>(element) = 1;
    }
  } else {
    if (!is_plain(gradient) || t.dtype.of(gradient) != t.dtype.of(tensor)) Py_RETURN_FALSE;
    PyArrayObject* fits = as_array(t.array.of(gradient));
    if (PyArray_NDIM(fits) != PyArray_NDIM(made) ||
        !PyArray_CompareLists(PyArray_DIMS(fits), PyArray_DIMS(made), PyArray_NDIM(made))) {
      Py_RETURN_FALSE;
    }
    start = Ref::share(reinterpret_cast<PyObject*>(fits));
  }
  const Py_ssize_t number = PyLong_AsSsize_t(t.output_nr.of(tensor));
  if (number == -1 && PyErr_Occurred()) return nullptr;
  Pass pass(args[2] == Py_True, true, Py_None);
  std::vector<Root> roots(1);
  roots[0].node = Ref::share(node);
  roots[0].output_nr = number;
  roots[0].array = std::move(start);
  switch (pass.run(roots)) {
    case Answer::kError: return nullptr;
    case Answer::kNo: Py_RETURN_FALSE;
    case Answer::kDone: break;
  }
  Py_RETURN_TRUE;
}

bool is_engine_ready() {
  return engine_objects.accumulate_type != nullptr && function_layout.node != nullptr &&
         node_layout.type != nullptr;
}

PyObject* configure_engine(PyObject*, PyObject* args) {
  EngineObjects& o = engine_objects;
  PyObject *accumulate, *dtype, *wrap, *accumulator_of, *lock, *begin, *visit, *checked;
  if (!PyArg_ParseTuple(args, "O!O!OOOOOO", &PyType_Type, &accumulate, &PyType_Type, &dtype, &wrap,
                        &accumulator_of, &lock, &begin, &visit, &checked)) {
    return nullptr;
  }
  if (!o.variable.place(reinterpret_cast<PyTypeObject*>(accumulate)) ||
      !o.descr.place(reinterpret_cast<PyTypeObject*>(dtype))) {
    return nullptr;
  }
  Ref acquire = Ref::take(PyObject_GetAttrString(lock, "acquire"));
  Ref release = Ref::take(PyObject_GetAttrString(lock, "release"));
  if (!acquire || !release) return nullptr;
  // All of it lives as long as the process.
  o.dtype_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(dtype));
  o.accumulate_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(accumulate));
  o.wrap = Py_NewRef(wrap);
  o.accumulator_of = Py_NewRef(accumulator_of);
  o.acquire = acquire.give();
  o.release = release.give();
  o.begin = Py_NewRef(begin);
  o.visit = Py_NewRef(visit);
  o.checked = Py_NewRef(checked);
  Py_RETURN_NONE;
}

PyObject* configure_compiled(PyObject*, PyObject* type) {
  if (!PyType_Check(type)) {
    PyErr_SetString(PyExc_TypeError, "expected a class of nodes");
    return nullptr;
  }
  Py_XDECREF(engine_objects.compiled_type);
  engine_objects.compiled_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(type));
  Py_RETURN_NONE;
}

bool prepare_engine() {
  EngineObjects& o = engine_objects;
  const std::pair<PyObject**, const char*> names[] = {
      {&o.accumulator, "_accumulator"}, {&o.hooks, "_hooks"},
      {&o.grad, "_grad"},               {&o.inference, "_inference"},
      {&o.bump_version, "_bump_version"}, {&o.value, "value"},
      {&o.enabled, "enabled"},          {&o.known_array_rules, "known_array_rules"},
      {&o.array_rules, "array_rules"},  {&o.public_ctx, "ctx"},
      {&o.fitted, "fitted"},            {&o.free, "_free"},
      {&o.synchronise, "_synchronise"},   {&o.apply_to_array, "apply_to_array"},
  };
  for (const auto& [place, text] : names) {
    *place = PyUnicode_InternFromString(text);
    if (*place == nullptr) return false;
  }
  o.named_retain = Py_BuildValue("(s)", "retain");
  return o.named_retain != nullptr;
}

}  // namespace tensorplay

// The reverse pass for the commonest graphs: plain tensors, no record of the pass itself.
//
// `tensorplay.autograd.engine` is the reference, and says what a pass does. A pass is taken here only
// if that is known to be possible before anything changed. On the way, what is not plain (a node with
// hooks, a gradient that is more than its elements, a formula on tensors) is handed to Python, one
// node at a time, and what comes back goes on here.
#pragma once

#include <cstdint>
#include <vector>

#include "arrays.h"
#include "layout.h"

namespace tensorplay {

// tensorplay.autograd.function_context.FunctionNode and FunctionContext: what they have besides.
struct FunctionLayout {
  PyTypeObject* node = nullptr;
  PyTypeObject* context = nullptr;
  Slot ctx{"_ctx"}, maker{"_maker"}, formula{"formula"}, given{"given"}, zeros{"zeros"};
  Slot needs_input_grad{"needs_input_grad"}, to_save{"_to_save"}, for_forward{"_for_forward"},
      saved{"_saved"}, freed{"_freed"}, node_reference{"_node"}, dirty{"_dirty"},
      non_differentiable{"_non_differentiable"}, materialize{"_materialize"}, in_jvp{"_in_jvp"},
      level{"_level"}, input_ids{"_input_ids"}, computed{"_computed"}, tracked{"_tracked"};

  bool place(PyTypeObject* node_type, PyTypeObject* context_type);
};

extern FunctionLayout function_layout;

// What the pass needs of Python: set by `configure_engine`.
struct EngineObjects {
  PyTypeObject* accumulate_type = nullptr;  // AccumulateGrad
  Slot variable{"variable"};
  PyTypeObject* dtype_type = nullptr;  // of the runtime's element types
  Slot descr{"numpy"};
  PyObject* wrap = nullptr;
  PyObject* accumulator_of = nullptr;
  PyObject* acquire = nullptr;  // of the lock that is held while a `grad` grows
  PyObject* release = nullptr;
  PyObject* begin = nullptr;    // the state of the pass for Python's functions
  PyObject* visit = nullptr;
  PyTypeObject* compiled_type = nullptr;  // CompiledNode, once the compiler is imported
  PyObject* apply_to_array = nullptr;
  PyObject* named_retain = nullptr;  // names of its named arguments
  PyObject* checked = nullptr;
  PyObject* accumulator = nullptr;  // names of attributes
  PyObject* hooks = nullptr;
  PyObject* grad = nullptr;
  PyObject* inference = nullptr;
  PyObject* bump_version = nullptr;
  PyObject* value = nullptr;
  PyObject* enabled = nullptr;
  PyObject* known_array_rules = nullptr;
  PyObject* array_rules = nullptr;
  PyObject* public_ctx = nullptr;
  PyObject* fitted = nullptr;
  PyObject* free = nullptr;
  PyObject* synchronise = nullptr;
};

extern EngineObjects engine_objects;

bool is_engine_ready();

enum class Answer { kDone, kNo, kError };  // kNo: it is Python's turn, and nothing changed

// Whether a tensor is no more than its elements, which NumPy has.
inline bool is_plain(PyObject* object) {
  return tensor_layout.is(object) && is_array(tensor_layout.array.of(object)) &&
         tensor_layout.requires_grad.of(object) == Py_False &&
         tensor_layout.tangent.of(object) == Py_None;
}

// The runtime's element type in a slot of `object`, borrowed; null if nothing of the kind is there.
inline PyObject* dtype_in(const Slot& slot, PyObject* object) {
  PyObject* found = slot.of(object);
  return is_of(found, engine_objects.dtype_type) ? found : nullptr;
}

// Return a tensor on an array, as Python's `wrap` does; null with an error set.
PyObject* wrapped_gradient(PyObject* array, PyObject* dtype);

// Count a write to the memory of a tensor; false with an error set.
bool bump_version(PyObject* tensor);

// Return the array, or a copy if anybody else has it or its memory.
Ref owned_array(Ref array);

// Whether gradients are recorded, switched off for as long as this lives; only if somebody asks.
class NoRecord {
 public:
  NoRecord() = default;
  NoRecord(const NoRecord&) = delete;
  NoRecord& operator=(const NoRecord&) = delete;
  ~NoRecord();
  bool begin();  // false with an error set
  bool was_on() const { return before_.get() == Py_True; }

 private:
  Ref before_;
};

struct Root {
  Ref node;
  Py_ssize_t output_nr = 0;
  Ref array;
};

class Pass {
 public:
  Pass(bool retain, bool accumulate, PyObject* inputs)
      : retain_(retain), accumulate_(accumulate), inputs_(inputs) {}
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;
  ~Pass();

  // Run from the roots; `inputs` is a sequence of edges whose gradients are wanted, or None.
  Answer run(const std::vector<Root>& roots);
  // The gradients of the inputs, a new list.
  PyObject* captured();

 private:
  enum class Kind : uint8_t { kPrimitive, kFunction, kCompiled, kAccumulate, kLeaf, kOther };

  struct Target {
    int32_t index;  // of the entry, -1 where no gradient is wanted
    int32_t output_nr;
  };

  struct Entry {
    Ref node;      // or the leaf, where nobody has made its `AccumulateGrad`
    Ref gradient;  // an array, a tensor, or a list of these by output
    int64_t sequence = 0;
    int32_t pending = 0;
    int32_t first = 0;  // of its targets
    int32_t count = 0;
    int32_t capture = -1;  // the first of its captures
    Kind kind = Kind::kOther;
    bool own = false;  // the gradient is a sum that nobody else has
    bool useful = true;
  };

  struct Capture {
    int32_t output_nr;
    int32_t position;
    int32_t next;
  };

  Answer run_all(const std::vector<Root>& roots);
  Answer discover(const std::vector<Root>& roots);
  Answer walk(int32_t index);
  Answer enter_source(PyObject* source, Target* out);
  Answer enter(PyObject* node, int32_t* out);
  Answer enter_leaf(PyObject* leaf, int32_t* out);
  int32_t find(PyObject* key);
  void insert(PyObject* key, int32_t index);
  Answer want_inputs();
  bool loop();
  bool visit(int32_t index, std::vector<Ref>& results);
  bool hand_on(int32_t index, std::vector<Ref>& results, PyObject* given);
  bool capture(Entry& entry, Ref& gradient);

  // nodes.cpp
  Answer apply_primitive(int32_t index, PyObject* gradient, std::vector<Ref>& results);
  Answer apply_function(int32_t index, PyObject* gradient, std::vector<Ref>& results, Ref* given);
  Answer apply_compiled(int32_t index, PyObject* gradient, std::vector<Ref>& results);
  Answer accumulate(const Entry& entry, Ref& gradient);
  static PyObject* leaf_of(const Entry& entry);  // borrowed; null if it is not a plain tensor
  static int is_bare(const Entry& entry);        // without hooks; -1 with an error set
  bool apply_in_python(int32_t index, Ref gradient, std::vector<Ref>& results, Ref* given);
  bool fits(int32_t index, int32_t output_nr, PyArrayObject* array, PyObject* dtype);
  bool deliver(int32_t index, int32_t output_nr, Ref value);
  Ref sum(PyObject* a, PyObject* b, PyObject* out);
  PyObject* node_of(int32_t index);  // borrowed; null with an error set
  bool begin_python();
  bool is_wanted(int32_t target) const;

  const bool retain_;
  const bool accumulate_;
  PyObject* const inputs_;
  std::vector<Entry> entries_;
  std::vector<Target> targets_;
  std::vector<Capture> captures_;
  std::vector<int32_t> table_;  // indices of entries by the address of their node, or -1
  Ref captured_;
  Ref state_;
  Ref passes_;  // the list of those under way in this thread, if this one is among them
  Ref useful_;
  NoRecord no_record_;
  Quiet quiet_;
};

// run_backward(roots, retain_graph, inputs, accumulate)
PyObject* run_backward(PyObject* module, PyObject* const* args, Py_ssize_t count);
// backward_plainly(tensor, gradient, retain_graph)
PyObject* backward_plainly(PyObject* module, PyObject* const* args, Py_ssize_t count);
// configure_engine(AccumulateGrad, dtype, wrap, accumulator_of, lock, begin, visit, checked)
PyObject* configure_engine(PyObject* module, PyObject* args);
// configure_functions(FunctionNode, FunctionContext)
PyObject* configure_functions(PyObject* module, PyObject* args);
// configure_compiled(CompiledNode)
PyObject* configure_compiled(PyObject* module, PyObject* type);
bool prepare_engine();

// function.cpp: apply_plainly(cls, args)
PyObject* apply_plainly(PyObject* module, PyObject* const* args, Py_ssize_t count);
// configure_apply(Function, SavedTensor, dtype, first_differentiable, takes_more, finish, hooks,
// no_node, miss, no_zeros)
PyObject* configure_apply(PyObject* module, PyObject* args);
// record_call(maker, ctx, formula, inputs, output): make a node the history of the only output.
PyObject* record_call(PyObject* module, PyObject* const* args, Py_ssize_t count);

// grad_mode.cpp: Python's type `GradModeBase`.
PyObject* configure_grad_mode(PyObject* module, PyObject* args);
bool prepare_grad_mode(PyObject* module);

// operator_call.cpp: Python's type `OperatorCall`.
bool prepare_operator_call(PyObject* module);

}  // namespace tensorplay

// The module `tensorplay._native._core`.
#include "descent.h"
#include "engine.h"
#include "ffi_abi.h"
#include "formulas.h"
#include "launch.h"
#include "layout.h"
#include "steps.h"
#include "windows.h"

namespace {

using namespace tensorplay;

// What the Python code beside the extension expects of it: raised, here and in `_native/__init__.py`,
// whenever either side changes in a way that the other has to know.
constexpr long kInterface = 9;

// What Python's table holds in place of a function with more arguments than its own type has.
template <typename Function>
PyCFunction method(Function* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

int current_stream(int32_t, int32_t, void** out) {
  *out = nullptr;  // the cpu has no streams
  return 0;
}

DLExchangeTable table = {
    {{kMajor, kMinor}, nullptr}, allocate, from_object, to_object, nullptr, current_stream,
};

PyObject* allocator_address(PyObject*, PyObject*) {
  return PyLong_FromVoidPtr(reinterpret_cast<void*>(&allocate));
}

PyObject* count_live(PyObject*, PyObject*) { return PyLong_FromLongLong(live_allocations()); }

PyMethodDef methods[] = {
    {"configure", configure, METH_VARARGS,
     "configure(tensor_type, wrap, grad_state, detours, types): say what a tensor is. "
     "Each of types is (NumPy's dtype, the runtime's, DLPack's code, bits)."},
    {"set_layout", set_layout, METH_VARARGS,
     "set_layout(Tensor, VersionCounter, Node, PrimitiveNode, Edge, numbers, grad_state, detours): "
     "say which classes and objects the short ways and the reverse pass work on."},
    {"configure_arrays", configure_arrays, METH_VARARGS,
     "configure_arrays(silence, restore, add): say how NumPy's warnings are silenced."},
    {"configure_grad_mode", configure_grad_mode, METH_VARARGS,
     "configure_grad_mode(state, this_thread, detours): say where the modes are kept."},
    {"configure_engine", configure_engine, METH_VARARGS,
     "configure_engine(AccumulateGrad, dtype, wrap, accumulator_of, lock, begin, visit, "
     "checked): say what the reverse pass needs of Python."},
    {"configure_compiled", configure_compiled, METH_O,
     "configure_compiled(CompiledNode): say what a call of a compiled function leaves."},
    {"configure_functions", configure_functions, METH_VARARGS,
     "configure_functions(FunctionNode, FunctionContext): say what a user's function leaves."},
    {"configure_apply", configure_apply, METH_VARARGS,
     "configure_apply(Function, SavedTensor, dtype, first_differentiable, takes_more, finish, "
     "hooks, no_node, miss, no_zeros): say what a call of a user's function needs of Python."},
    {"apply_plainly",
     method(apply_plainly), METH_FASTCALL,
     "apply_plainly(cls, args): call a user's function and record it; `miss`, before anything ran, "
     "if the call is Python's."},
    {"record_call", method(record_call),
     METH_FASTCALL,
     "record_call(maker, ctx, formula, inputs, output): make a node the history of the only output; "
     "of a call whose context nobody fills ctx is None."},
    {"run_backward", method(run_backward),
     METH_FASTCALL,
     "run_backward(roots, retain_graph, inputs, accumulate): run a reverse pass and return the "
     "gradients of the inputs; NotImplemented, before anything changed, if it is Python's."},
    {"backward_plainly",
     method(backward_plainly), METH_FASTCALL,
     "backward_plainly(tensor, gradient, retain_graph): run a reverse pass from one tensor and "
     "return True; False, before anything changed, if it is Python's."},
    {"set_short_ways", set_short_ways, METH_VARARGS,
     "set_short_ways(types, quietly, versions, patterns, most): say what the short ways share."},
    {"short_way", method(short_way),
     METH_VARARGS | METH_KEYWORDS,
     "short_way(kind, primitive, function, *, ...): return the short way of an operator."},
    {"configure_ffi", configure_ffi, METH_VARARGS,
     "configure_ffi(addresses, make): say where the engine's functions are, and how one is made."},
    {"hold", hold, METH_VARARGS,
     "hold(address, is_sample): let an engine's object that owns a Python object outlive Python."},
    {"creators", creators, METH_NOARGS,
     "creators(): addresses of functions, by the names of the engine's own before which they stand, "
     "whose objects outlive Python from the start."},
    {"allocator_address", allocator_address, METH_NOARGS,
     "Address of the allocator, as the engine's environment takes it."},
    {"park_threads_at_exit", park_threads_at_exit, METH_NOARGS,
     "Let threads that leave a kernel after the interpreter's end wait for that of the process."},
    {"live_allocations", count_live, METH_NOARGS,
     "How many tensors of the allocator are not freed."},
    {"guard_results", guard_results, METH_VARARGS,
     "guard_results(zone, zone_byte, element_byte): put what kernels allocate from now on between "
     "zones of at least so many bytes, and fill both; zone 0 switches it off."},
    {"take_damage", take_damage, METH_NOARGS,
     "Where zones were written since the last call: (address of the elements, first element, how "
     "many elements there are)."},
    {"set_threads", set_threads, METH_O, "How many threads run the compiler's kernels from now on."},
    {"threads", get_threads, METH_NOARGS, "How many threads run the compiler's kernels."},
    {"call_keeping", method(call_keeping),
     METH_FASTCALL,
     "call_keeping(function, *args): call a function whose large arrays are made of such memory."},
    {"convolve", convolve, METH_VARARGS,
     "convolve(x, w, out, stride, padding, dilation, groups, level=-1): write a convolution of arrays "
     "in C order and return True; False where NumPy has to compute it."},
    {"correlate", correlate, METH_VARARGS,
     "correlate(y, x, out, stride, padding, dilation, groups, level=-1): the same of its adjoint in "
     "the weight."},
    {"tile_levels", tile_levels, METH_NOARGS,
     "How many widths of vectors convolutions can be computed with here, 0 if none."},
    {"pool_largest", pool_largest, METH_VARARGS,
     "pool_largest(x, values, places, kernel, stride, padding, dilation): write the largest elements "
     "of windows and return True; False where NumPy has to find them."},
    {"add_at_places", add_at_places, METH_VARARGS,
     "add_at_places(out, places, values): add numbers to elements of the last dimension and return "
     "True; False, before anything changed, where NumPy has to."},
    {"multiply_matrices", method(multiply_matrices), METH_FASTCALL,
     "multiply_matrices(fallback, a, b): the product of two arrays, as fallback(a, b) gives it."},
    {"transposed_product", method(transposed_product), METH_FASTCALL,
     "transposed_product(fallback, a, b): its transpose, in memory of its own."},
    {"sum_axis_0", method(sum_axis_0), METH_FASTCALL,
     "sum_axis_0(fallback, x, size): the sum of the rows of a matrix, as fallback(x, size) gives it."},
    {"pick_class", method(pick_class), METH_FASTCALL,
     "pick_class(fallback, x, target, dim, ignore_index, function): as fallback picks them."},
    {"place_class", method(place_class), METH_FASTCALL,
     "place_class(fallback, g, target, dim, ignore_index, classes): as fallback places them; one "
     "element of g stands for all."},
    {"sgd_step", sgd_step, METH_VARARGS,
     "sgd_step(parameters, at, states, most, lr, decay, momentum, share, nesterov, maximize): step "
     "with the parameters from index `at` on that have fewer than `most` elements, and return the "
     "index of the first that is left to NumPy."},
    {"softmax", method(softmax), METH_FASTCALL,
     "softmax(x, logarithm): the softmax along the last dimension, or its logarithm."},
    {"softmax_gradient", method(softmax_gradient), METH_FASTCALL,
     "softmax_gradient(g, out, logarithm): the gradient of what `softmax` returned."},
    {"relu_gradient", method(relu_gradient), METH_FASTCALL,
     "relu_gradient(g, out): `g`, zero where `out` is not positive."},
    {"nll_loss", method(nll_loss), METH_FASTCALL,
     "nll_loss(x, target, ignore_index): the mean of the negative elements at classes."},
    {"nll_loss_gradient", method(nll_loss_gradient), METH_FASTCALL,
     "nll_loss_gradient(g, target, ignore_index, classes): its gradient in the elements."},
    {"kept_memory", memory_kept, METH_O,
     "Bytes of freed results that are kept for new ones; a true argument gives them back."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_core", "Tensors and calls across the native boundary.", -1, methods,
    nullptr, nullptr, nullptr, nullptr,
};

}  // namespace

PyMODINIT_FUNC PyInit__core() {
  PyObject* module = PyModule_Create(&definition);
  if (module == nullptr) return nullptr;
  PyObject* capsule = PyCapsule_New(&table, "dlpack_exchange_api", nullptr);
  if (!prepare_layout() || !prepare_exchange() || !prepare_call_base(module) ||
      !prepare_launch(module) || !prepare_arrays(module) || !prepare_engine() ||
      !prepare_operator_call(module) || !prepare_grad_mode(module) ||
      !prepare_short_ways(module) || !prepare_formulas() || !prepare_descent() ||
      !prepare_windows() || !prepare_pooling() || !prepare_steps() || capsule == nullptr ||
      PyModule_AddIntConstant(module, "interface", kInterface) != 0 ||
      PyModule_AddObjectRef(module, "exchange_table", capsule) != 0) {
    Py_XDECREF(capsule);
    Py_DECREF(module);
    return nullptr;
  }
  Py_DECREF(capsule);
  return module;
}

// The module `tensorplay._native._core`.
#include "launch.h"
#include "layout.h"

namespace {

using namespace tensorplay;

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
    {"allocator_address", allocator_address, METH_NOARGS,
     "Address of the allocator, as the engine's environment takes it."},
    {"live_allocations", count_live, METH_NOARGS,
     "How many tensors of the allocator are not freed."},
    {"set_threads", set_threads, METH_O, "How many threads run the compiler's kernels from now on."},
    {"threads", get_threads, METH_NOARGS, "How many threads run the compiler's kernels."},
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
      !prepare_launch(module) || capsule == nullptr ||
      PyModule_AddObjectRef(module, "exchange_table", capsule) != 0) {
    Py_XDECREF(capsule);
    Py_DECREF(module);
    return nullptr;
  }
  Py_DECREF(capsule);
  return module;
}

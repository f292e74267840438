// The engine's functions, by the addresses that Python found in its library.
#include "ffi_abi.h"

namespace tensorplay {

Ffi ffi{};

namespace {

PyObject* give = nullptr;  // the engine's function of Python that gives the value it is told

template <class Function>
bool put(PyObject* addresses, const char* name, Function& out) {
  PyObject* address = PyDict_GetItemString(addresses, name);  // borrowed
  if (address == nullptr) {
    PyErr_SetString(PyExc_KeyError, name);
    return false;
  }
  void* found = PyLong_AsVoidPtr(address);
  if (found == nullptr) return false;
  out = reinterpret_cast<Function>(found);
  return true;
}

int give_value(void*, const FfiAny* args, int32_t, FfiAny* result) {
  result->type = static_cast<int32_t>(args[0].integer);
  result->padding = static_cast<uint32_t>(args[1].integer);
  result->integer = args[2].integer;
  return 0;
}

}  // namespace

PyObject* given(const FfiAny& value) {
  return PyObject_CallFunction(give, "iIL", static_cast<int>(value.type), value.padding,
                               static_cast<long long>(value.integer));
}

// configure_ffi(addresses, make): `make` turns the address of a C function into one of the engine's.
PyObject* configure_ffi(PyObject*, PyObject* args) {
  PyObject *addresses, *make;
  if (!PyArg_ParseTuple(args, "O!O", &PyDict_Type, &addresses, &make)) return nullptr;
  Ffi found{};
  if (!put(addresses, "TVMFFIFunctionCall", found.call) ||
      !put(addresses, "TVMFFIObjectDecRef", found.release) ||
      !put(addresses, "TVMFFITensorFromDLPackVersioned", found.tensor_from) ||
      !put(addresses, "TVMFFITensorToDLPackVersioned", found.tensor_to) ||
      !put(addresses, "TVMFFIErrorMoveFromRaised", found.take_error) ||
      !put(addresses, "TVMFFIErrorSetRaisedFromCStr", found.set_error) ||
      !put(addresses, "TVMFFIEnvGetDLPackManagedTensorAllocator", found.allocator) ||
      !put(addresses, "TVMFFIEnvSetDLPackManagedTensorAllocator", found.set_allocator) ||
      !put(addresses, "TVMFFIObjectCreateOpaque", found.create_object) ||
      !put(addresses, "TVMFFIFunctionCreate", found.create_function)) {
    return nullptr;
  }
  PyObject* address = PyLong_FromVoidPtr(reinterpret_cast<void*>(&give_value));
  if (address == nullptr) return nullptr;
  PyObject* made = PyObject_CallOneArg(make, address);
  Py_DECREF(address);
  if (made == nullptr) return nullptr;
  Py_XSETREF(give, made);
  ffi = found;
  Py_RETURN_NONE;
}

}  // namespace tensorplay

// Tensors across the boundary: what `Tensor.__dlpack_c_exchange_api__` points to.
//
// A tensor is a Python object around a NumPy array (`_array`). Exported, the array is held until the
// consumer lets go; imported, an array holds the memory and the runtime's own `wrap` makes the
// tensor. What needs a longer word than an error code (a tensor that requires grad, read-only memory)
// raises BufferError, and the Python side says what to write instead.
#include "layout.h"

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>

#include <new>
#include <vector>

namespace tensorplay {
namespace {

struct KnownType {
  PyArray_Descr* descr;
  PyObject* dtype;  // the runtime's own object
  DLDataType word;  // DLPack's
};

PyObject* wrap = nullptr;  // Python's way to make a tensor of an array; set by `configure`
std::vector<KnownType> known_types;

PyObject* name_synchronise = nullptr;

// Return an attribute of a tensor, a new reference, or null with an error set. A subclass may have a
// property in the place of a slot, so there it is asked for by name.
PyObject* get(const Slot& slot, PyObject* tensor) {
  PyObject* found = tensor_layout.is(tensor) ? slot.of(tensor) : nullptr;
  return found != nullptr ? Py_NewRef(found) : PyObject_GetAttr(tensor, slot.name);
}

// --- element types ---------------------------------------------------------------------------

const KnownType* by_number[NPY_NTYPES_LEGACY];  // of NumPy's own types, filled in by `find`

const KnownType* look_up(PyArray_Descr* descr) {
  for (const KnownType& known : known_types) {
    if (known.descr->type_num == descr->type_num) return &known;
    // NumPy has two numbers for one type where two C types have its width.
    if (known.descr->kind == descr->kind && descr->type_num < NPY_USERDEF &&
        known.descr->type_num < NPY_USERDEF &&
        PyDataType_ELSIZE(known.descr) == PyDataType_ELSIZE(descr)) {
      return &known;
    }
  }
  return nullptr;
}

const KnownType* find(PyArray_Descr* descr) {
  const int number = descr->type_num;
  if (number < 0 || number >= NPY_NTYPES_LEGACY) return look_up(descr);
  const KnownType*& known = by_number[number];
  if (known == nullptr) known = look_up(descr);
  return known;
}

const KnownType* find(DLDataType word) {
  for (const KnownType& known : known_types) {
    if (known.word.code == word.code && known.word.bits == word.bits &&
        known.word.lanes == word.lanes) {
      return &known;
    }
  }
  return nullptr;
}

// --- out -------------------------------------------------------------------------------------

bool needs_no_gradient(PyObject* tensor) {
  PyObject* wanted = get(tensor_layout.requires_grad, tensor);
  if (wanted == nullptr) return false;
  const bool requires_grad = wanted == Py_True;
  Py_DECREF(wanted);
  if (!requires_grad) return true;
  const int recording = is_recording();
  if (recording < 0) return false;
  if (!recording) return true;
  PyErr_SetString(PyExc_BufferError,
                  "[__dlpack__] can't export tensors that require gradient: the receiver would "
                  "compute outside of the graph. Wrap the call in `library.custom_op`, write "
                  "x.detach(), or write `with tensorplay.no_grad():` around it.");
  return false;
}

bool has_no_tangent(PyObject* tensor) {
  PyObject* tangent = get(tensor_layout.tangent, tensor);
  if (tangent == nullptr) return false;
  const bool none = tangent == Py_None;
  Py_DECREF(tangent);
  if (!none) {
    PyErr_SetString(PyExc_BufferError,
                    "[__dlpack__] can't export tensors that have a tangent: forward mode would miss "
                    "what the receiver computes. Wrap the call in `library.custom_op`, or write "
                    "x.detach().");
  }
  return none;
}

// Return the array of a tensor as a new reference, or null with BufferError set.
PyArrayObject* array_of(PyObject* tensor) {
  PyObject* base = get(tensor_layout.base, tensor);
  if (base == nullptr) return nullptr;
  const bool is_view = base != Py_None;
  Py_DECREF(base);
  if (is_view) {  // its history may have changed through the base, and with it `_requires_grad`
    PyObject* done = PyObject_CallMethodNoArgs(tensor, name_synchronise);
    if (done == nullptr) return nullptr;
    Py_DECREF(done);
  }
  if (!needs_no_gradient(tensor) || !has_no_tangent(tensor)) return nullptr;
  PyObject* array = get(tensor_layout.array, tensor);
  if (array == nullptr) return nullptr;
  if (!PyArray_Check(array)) {
    Py_DECREF(array);
    PyErr_SetString(PyExc_BufferError,
                    "[__dlpack__] a tensor on device meta has no memory to exchange.");
    return nullptr;
  }
  auto* made = reinterpret_cast<PyArrayObject*>(array);
  if (!PyArray_ISWRITEABLE(made)) {
    Py_DECREF(array);
    PyErr_SetString(PyExc_BufferError,
                    "[__dlpack__] expected memory that may be written, got read-only one, which a "
                    "kernel cannot be told. Write x.clone().");
    return nullptr;
  }
  return made;
}

// Fill in all but the pointers to shape and strides. False with an error set where it cannot be.
bool describe(PyArrayObject* array, DLTensor* out, int64_t* shape, int64_t* strides) {
  PyArray_Descr* descr = PyArray_DESCR(array);
  const KnownType* known = find(descr);
  if (known == nullptr || !PyArray_ISNBO(descr->byteorder)) {
    PyErr_Format(PyExc_BufferError, "[__dlpack__] DLPack has no word for elements of type %R.",
                 reinterpret_cast<PyObject*>(descr));
    return false;
  }
  const int ndim = PyArray_NDIM(array);
  const npy_intp item = PyArray_ITEMSIZE(array);
  for (int i = 0; i < ndim; ++i) {
    const npy_intp bytes = PyArray_STRIDE(array, i);
    if (bytes % item != 0) {
      PyErr_SetString(PyExc_BufferError,
                      "[__dlpack__] elements do not lie whole elements apart. Write x.clone().");
      return false;
    }
    shape[i] = PyArray_DIM(array, i);
    strides[i] = bytes / item;
  }
  *out = {PyArray_DATA(array), {kDLCPU, 0}, ndim, known->word, shape, strides, 0};
  return true;
}

// An exported array. Kept in a list for the next export, so that a call allocates nothing; the list
// is touched with the interpreter's lock held only.
struct Export {
  DLManagedTensorVersioned managed;
  PyArrayObject* array;
  Export* next;
  int64_t sizes[2 * kMaxDims];
};

Export* spare = nullptr;
int spare_count = 0;
constexpr int kMostSpare = 64;

void release_export(DLManagedTensorVersioned* self) {
  auto* made = static_cast<Export*>(self->manager_ctx);
  // At exit the array is left to the system: there is no interpreter to give it back to.
  if (interpreter_is_gone()) return;
  const bool held = PyGILState_Check() != 0;  // as after every call of a kernel
  const PyGILState_STATE state = held ? PyGILState_LOCKED : PyGILState_Ensure();
  Py_CLEAR(made->array);
  if (spare_count < kMostSpare) {
    made->next = spare;
    spare = made;
    ++spare_count;
  } else {
    delete made;
  }
  if (!held) PyGILState_Release(state);
}

// --- in --------------------------------------------------------------------------------------

// Return a tensor on an array, as `wrap` does.
PyObject* wrapped(PyObject* array, PyObject* dtype) {
  if (has_detours()) return PyObject_CallOneArg(wrap, array);
  return new_tensor(Py_NewRef(array), Py_NewRef(dtype));
}

void release_import(PyObject* capsule) {
  auto* managed =
      static_cast<DLManagedTensorVersioned*>(PyCapsule_GetPointer(capsule, "tensorplay_memory"));
  if (managed != nullptr && managed->deleter != nullptr) managed->deleter(managed);
}

}  // namespace

bool is_known(DLDataType word) { return find(word) != nullptr; }

bool is_tensor(PyObject* object) { return tensor_layout.is(object); }

bool is_special_to_numpy(PyObject* object) {
  return PyArray_IsScalar(object, Generic) ||
         (PyArray_Check(object) && !PyArray_CheckExact(object));
}

int from_object(void* object, DLManagedTensorVersioned** out) {
  *out = nullptr;
  PyArrayObject* array = array_of(static_cast<PyObject*>(object));
  if (array == nullptr) return -1;
  Export* made = spare;
  if (made != nullptr) {
    spare = made->next;
    --spare_count;
  } else {
    made = new (std::nothrow) Export{};
    if (made == nullptr) {
      Py_DECREF(array);
      PyErr_NoMemory();
      return -1;
    }
  }
  if (!describe(array, &made->managed.dl_tensor, made->sizes, made->sizes + kMaxDims)) {
    Py_DECREF(array);
    made->next = spare;
    spare = made;
    ++spare_count;
    return -1;
  }
  made->array = array;
  made->managed.version = {kMajor, kMinor};
  made->managed.manager_ctx = made;
  made->managed.deleter = release_export;
  made->managed.flags = 0;
  *out = &made->managed;
  return 0;
}

PyObject* view_of(PyObject* tensor, DLTensor* out, int64_t* sizes, int room) {
  PyArrayObject* array = array_of(tensor);
  if (array == nullptr) return nullptr;
  const int ndim = PyArray_NDIM(array);
  if (2 * ndim > room || !describe(array, out, sizes, sizes + ndim)) {
    Py_DECREF(array);
    return nullptr;
  }
  return reinterpret_cast<PyObject*>(array);
}

int to_object(DLManagedTensorVersioned* tensor, void** out) {
  *out = nullptr;
  const DLTensor& view = tensor->dl_tensor;
  if (wrap == nullptr) {
    PyErr_SetString(PyExc_RuntimeError, "tensorplay._native was not configured");
    return -1;
  }
  if (view.device.device_type != kDLCPU) {
    PyErr_Format(PyExc_BufferError,
                 "[from_dlpack] expected memory on the cpu (DLPack device type 1), got type %d. "
                 "Copy it to the cpu first.",
                 static_cast<int>(view.device.device_type));
    return -1;
  }
  const KnownType* known = find(view.dtype);
  if (known == nullptr) {
    PyErr_Format(PyExc_BufferError,
                 "[from_dlpack] unsupported dlpack dtype: code %d, %d bits, %d lanes.",
                 view.dtype.code, view.dtype.bits, view.dtype.lanes);
    return -1;
  }
  if (view.ndim < 0 || view.ndim > NPY_MAXDIMS) {
    PyErr_Format(PyExc_BufferError, "[from_dlpack] expected at most %d dimensions, got %d.",
                 NPY_MAXDIMS, static_cast<int>(view.ndim));
    return -1;
  }
  npy_intp shape[NPY_MAXDIMS];
  npy_intp strides[NPY_MAXDIMS];
  const npy_intp item = PyDataType_ELSIZE(known->descr);
  npy_intp step = item;
  for (int i = view.ndim - 1; i >= 0; --i) {
    shape[i] = view.shape[i];
    strides[i] = view.strides != nullptr ? view.strides[i] * item : step;
    step *= shape[i];
  }
  const int flags = (tensor->flags & kDLFlagReadOnly) ? 0 : NPY_ARRAY_WRITEABLE;
  Py_INCREF(known->descr);
  PyObject* array = PyArray_NewFromDescr(  // steals that reference
      &PyArray_Type, known->descr, view.ndim, shape, strides,
      static_cast<char*>(view.data) + view.byte_offset, flags, nullptr);
  if (array == nullptr) return -1;
  PyObject* made = wrapped(array, known->dtype);
  if (made == nullptr) {
    Py_DECREF(array);
    return -1;
  }
  // Only now does the memory change hands: a failure above leaves it to the caller.
  PyObject* owner = PyCapsule_New(tensor, "tensorplay_memory", release_import);
  if (owner == nullptr) {
    Py_DECREF(array);
    Py_DECREF(made);
    return -1;
  }
  const int set = PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(array), owner);
  Py_DECREF(array);
  if (set != 0) {  // the capsule has been destroyed with the memory: nothing is left to give back
    Py_DECREF(made);
    Py_FatalError("tensorplay._native: NumPy refused to own imported memory");
  }
  *out = made;
  return 0;
}

// configure(tensor_type, wrap, grad_state, detours, types): types is a sequence of
// (NumPy's dtype, the runtime's, DLPack's code, bits).
PyObject* configure(PyObject*, PyObject* args) {
  PyObject *type, *make, *state, *threads, *types;
  if (!PyArg_ParseTuple(args, "O!OOO!O", &PyType_Type, &type, &make, &state, &PySet_Type, &threads,
                        &types)) {
    return nullptr;
  }
  if (!tensor_layout.place(reinterpret_cast<PyTypeObject*>(type))) return nullptr;
  PyObject* rows = PySequence_Fast(types, "expected a sequence of (dtype, dtype, code, bits)");
  if (rows == nullptr) return nullptr;
  std::vector<KnownType> found;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(rows); ++i) {
    PyObject *descr, *dtype;
    int code = 0;
    int bits = 0;
    if (!PyArg_ParseTuple(PySequence_Fast_GET_ITEM(rows, i), "O!Oii", &PyArrayDescr_Type, &descr,
                          &dtype, &code, &bits)) {
      Py_DECREF(rows);
      return nullptr;
    }
    found.push_back({reinterpret_cast<PyArray_Descr*>(Py_NewRef(descr)), Py_NewRef(dtype),
                     {static_cast<uint8_t>(code), static_cast<uint8_t>(bits), 1}});
  }
  Py_DECREF(rows);
  for (const KnownType*& known : by_number) known = nullptr;
  known_types.swap(found);  // what they replace lives as long as the process
  Py_XSETREF(wrap, Py_NewRef(make));
  Py_XSETREF(grad_state, Py_NewRef(state));
  Py_XSETREF(detours, Py_NewRef(threads));
  Py_RETURN_NONE;
}

bool prepare_exchange() {
  if (PyArray_ImportNumPyAPI() < 0) return false;
  name_synchronise = PyUnicode_InternFromString("_synchronise");
  return name_synchronise != nullptr;
}

}  // namespace tensorplay

// A step of gradient descent for all small parameters of a group: what `SGD._update` does with NumPy,
// to the last bit (this file is compiled without contraction of products and sums).
#include "descent.h"

#include "engine.h"

namespace tensorplay {
namespace {

struct Options {
  double lr, decay, momentum, share;
  int nesterov, maximize;
};

// The operations are those of NumPy, one after the other, each rounded to the type.
template <typename T>
void step_by(T* x, const T* gradient, T* buffer, bool first, npy_intp count,
                const Options& options) {
  const T lr = static_cast<T>(options.lr), decay = static_cast<T>(options.decay);
  const T momentum = static_cast<T>(options.momentum), share = static_cast<T>(options.share);
  const bool decays = options.decay != 0;
  for (npy_intp i = 0; i < count; ++i) {
    T g = options.maximize ? -gradient[i] : gradient[i];
    if (decays) g = x[i] * decay + g;
    if (buffer != nullptr) {
      const T b = first ? g : buffer[i] * momentum + g * share;
      buffer[i] = b;
      g = options.nesterov ? b * momentum + g : b;
    }
    x[i] -= g * lr;
  }
}

// The elements of a plain tensor in one run of memory, null for others: those that are only read may
// lie in Fortran's order.
PyArrayObject* run_of(PyObject* tensor, bool writes) {
  if (tensor == nullptr || !tensor_layout.is(tensor)) return nullptr;
  PyObject* object = tensor_layout.array.of(tensor);
  if (object == nullptr || !PyArray_CheckExact(object)) return nullptr;
  auto* array = reinterpret_cast<PyArrayObject*>(object);
  const bool taken = writes ? PyArray_ISCARRAY(array)
                            : PyArray_ISCARRAY_RO(array) || PyArray_ISFARRAY_RO(array);
  if (!taken) return nullptr;
  const int type = PyArray_TYPE(array);
  return type == NPY_FLOAT || type == NPY_DOUBLE ? array : nullptr;
}

bool alike(PyArrayObject* a, PyArrayObject* b) {
  return PyArray_TYPE(a) == PyArray_TYPE(b) && PyArray_NDIM(a) == PyArray_NDIM(b) &&
         PyArray_CompareLists(PyArray_DIMS(a), PyArray_DIMS(b), PyArray_NDIM(a));
}

bool apart(PyArrayObject* a, PyArrayObject* b) {
  const char *first = PyArray_BYTES(a), *second = PyArray_BYTES(b);
  return first + PyArray_NBYTES(a) <= second || second + PyArray_NBYTES(b) <= first;
}

PyObject* name_grad = nullptr;
PyObject* name_buffer = nullptr;

// Change one parameter. kNo: it is NumPy's, and nothing changed.
Answer step(PyObject* parameter, PyObject* states, npy_intp most, const Options& options) {
  PyArrayObject* x = run_of(parameter, true);
  if (x == nullptr || PyArray_SIZE(x) >= most) return Answer::kNo;
  Ref grad = Ref::take(PyObject_GetAttr(parameter, name_grad));
  if (!grad) return Answer::kError;
  if (grad.get() == Py_None) return Answer::kDone;
  PyArrayObject* g = run_of(grad.get(), false);
  if (g == nullptr || !alike(x, g) || !apart(x, g)) return Answer::kNo;
  // Gradients of transposed matrices: copied, which for so few elements is soon done.
  Ref ordered = Ref::take(reinterpret_cast<PyObject*>(PyArray_GETCONTIGUOUS(g)));
  if (!ordered) return Answer::kError;
  Ref state = Ref::take(PyObject_GetItem(states, parameter));  // which makes one
  if (!state) return Answer::kError;
  PyArrayObject* buffer = nullptr;
  Ref made;
  bool first = false;
  if (options.momentum != 0) {
    if (!PyDict_CheckExact(state.get())) return Answer::kNo;
    PyObject* kept = PyDict_GetItemWithError(state.get(), name_buffer);
    if (kept == nullptr && PyErr_Occurred()) return Answer::kError;
    first = kept == nullptr || kept == Py_None;
    if (first) {
      made = Ref::take(PyArray_SimpleNew(PyArray_NDIM(x), PyArray_DIMS(x), PyArray_TYPE(x)));
      if (!made) return Answer::kError;
      buffer = as_array(made.get());
      Ref tensor = Ref::take(wrapped_gradient(made.get(), tensor_layout.dtype.of(parameter)));
      if (!tensor || PyDict_SetItem(state.get(), name_buffer, tensor.get()) != 0) {
        return Answer::kError;
      }
    } else {
      buffer = run_of(kept, true);
      if (buffer == nullptr || !alike(x, buffer) || !apart(x, buffer) || !apart(g, buffer)) {
        return Answer::kNo;
      }
    }
  }
  if (!bump_version(parameter)) return Answer::kError;
  const npy_intp count = PyArray_SIZE(x);
  void* const slope = PyArray_DATA(as_array(ordered.get()));
  void* const kept = buffer == nullptr ? nullptr : PyArray_DATA(buffer);
  if (PyArray_TYPE(x) == NPY_FLOAT) {
    step_by(static_cast<npy_float*>(PyArray_DATA(x)), static_cast<npy_float*>(slope),
            static_cast<npy_float*>(kept), first, count, options);
  } else {
    step_by(static_cast<npy_double*>(PyArray_DATA(x)), static_cast<npy_double*>(slope),
            static_cast<npy_double*>(kept), first, count, options);
  }
  return Answer::kDone;
}

}  // namespace

PyObject* sgd_step(PyObject*, PyObject* args) {
  PyObject *given, *states;
  Py_ssize_t at, most;
  Options options{};
  if (!PyArg_ParseTuple(args, "OnOnddddpp", &given, &at, &states, &most, &options.lr,
                        &options.decay, &options.momentum, &options.share, &options.nesterov,
                        &options.maximize)) {
    return nullptr;
  }
  Ref parameters = Ref::take(PySequence_Fast(given, "expected a sequence of parameters"));
  if (!parameters) return nullptr;
  const bool reads = is_engine_ready() && !has_detours();
  // In their order: gradients and parameters may share memory with one another.
  for (; reads && at < PySequence_Fast_GET_SIZE(parameters.get()); ++at) {
    Ref parameter = Ref::share(PySequence_Fast_GET_ITEM(parameters.get(), at));
    const Answer answer = step(parameter.get(), states, most, options);
    if (answer == Answer::kError) return nullptr;
    if (answer == Answer::kNo) break;
  }
  return PyLong_FromSsize_t(at);
}

bool prepare_descent() {
  name_grad = PyUnicode_InternFromString("_grad");
  name_buffer = PyUnicode_InternFromString("momentum_buffer");
  return name_grad != nullptr && name_buffer != nullptr;
}

}  // namespace tensorplay

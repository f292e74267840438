// NumPy's inner loops, which the extension calls where NumPy's way to them costs more than they do.
// Included after NumPy's headers, by `arrays.h` and by `quick.h`: each has its table of functions.
#pragma once

#include <cstdint>

namespace tensorplay {

// One of NumPy's own inner loops, so that results are NumPy's to the last bit.
struct Loop {
  PyUFuncGenericFunction run = nullptr;
  void* data = nullptr;
};

// Elements beyond which NumPy's way around a loop is small beside the loop, and lets other threads run.
constexpr npy_intp kMostDirectElements = 4096;

// So many elements NumPy adds in their type, and not in a wider one: `quick.MOST_OF_A_SMALL_SUM`.
extern npy_intp most_of_a_small_sum;

inline PyArrayObject* as_array(PyObject* object) {
  return reinterpret_cast<PyArrayObject*>(object);
}

// The inner loop of a function of NumPy for operands and result of one type, or none.
inline Loop loop_of(PyObject* function, int type) {
  auto* ufunc = reinterpret_cast<PyUFuncObject*>(function);
  if (ufunc->functions == nullptr || ufunc->types == nullptr || ufunc->nout != 1) return {};
  for (int i = 0; i < ufunc->ntypes; ++i) {
    const char* types = ufunc->types + static_cast<npy_intp>(i) * ufunc->nargs;
    bool fits = true;
    for (int k = 0; fits && k < ufunc->nargs; ++k) fits = types[k] == type;
    if (fits) return {ufunc->functions[i], ufunc->data == nullptr ? nullptr : ufunc->data[i]};
  }
  return {};
}

// Elements whose sums come out otherwise in any other order of the additions.
template <typename T>
void fill_for_sums(T* elements, npy_intp count) {
  uint64_t state = 12345;
  for (npy_intp i = 0; i < count; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    elements[i] = static_cast<T>(static_cast<int64_t>(state) >> 20) / static_cast<T>(1 << 20);
  }
}

}  // namespace tensorplay

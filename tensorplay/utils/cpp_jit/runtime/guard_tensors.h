// Where the elements of arguments lie, and the views of kernels on them; see tensorplay/guard.h.
#pragma once

#include <tensorplay/guard.h>
#include <tensorplay/runtime.h>

#include "guard_texts.h"

namespace tp_rt {

inline const DLTensor* tensor_of(const TVMFFIAny& value) {
  if (value.type_index == kTVMFFIDLTensorPtr) return static_cast<const DLTensor*>(value.v_ptr);
  if (value.type_index == kTVMFFITensor) return TVMFFITensorGetDLTensorPtr(value.v_obj);
  return nullptr;
}

// The members of a list; null for anything else. The engine's two lists begin alike.
inline const TVMFFISeqCell* list_of(const TVMFFIAny& value) {
  if (value.type_index != kTVMFFIArray && value.type_index != kTVMFFIList) return nullptr;
  const char* object = reinterpret_cast<const char*>(value.v_obj);
  return reinterpret_cast<const TVMFFISeqCell*>(object + sizeof(TVMFFIObject));
}

// The tensors of an argument, which may be one tensor, absent, or a list of these.
struct Members {
  const TVMFFIAny* first;
  int64_t count;
  explicit Members(const TVMFFIAny& value) : first(&value), count(1) {
    if (const TVMFFISeqCell* list = list_of(value)) {
      first = static_cast<const TVMFFIAny*>(list->data);
      count = list->size;
    }
  }
};

inline int64_t element_bytes(const DLTensor* t) { return (t->dtype.bits * t->dtype.lanes + 7) / 8; }

// How many elements a tensor has, and whether they lie one after the other.
struct Elements {
  int64_t count = 1;
  bool dense = true;
  explicit Elements(const DLTensor* t) {
    for (int32_t i = t->ndim - 1; i >= 0; --i) {
      const int64_t size = t->shape[i];
      if (size == 1) continue;
      if (t->strides) dense = dense && t->strides[i] == count;
      count *= size;
    }
    dense = dense || count == 0;
  }
};

inline int64_t count(const DLTensor* t) { return Elements(t).count; }

inline char* first_byte(const DLTensor* t) { return static_cast<char*>(t->data) + t->byte_offset; }

// Lowest byte and one past the highest byte that the tensor's elements occupy.
inline void extent(const DLTensor* t, const char** low, const char** high) {
  const int64_t bytes = element_bytes(t);
  int64_t down = 0, up = 0;
  if (t->strides) {
    for (int32_t i = 0; i < t->ndim; ++i) {
      const int64_t reach = (t->shape[i] - 1) * t->strides[i];
      (reach < 0 ? down : up) += reach;
    }
  } else {
    up = count(t) - 1;
  }
  *low = first_byte(t) + down * bytes;
  *high = first_byte(t) + (up + 1) * bytes;
}

inline int64_t gcd(int64_t a, int64_t b) {
  while (b) {
    const int64_t r = a % b;
    a = b;
    b = r;
  }
  return a < 0 ? -a : a;
}

inline int64_t stride_gcd(const DLTensor* t, int64_t g) {
  const int64_t bytes = element_bytes(t);
  if (!t->strides) return gcd(g, bytes);
  for (int32_t i = 0; i < t->ndim; ++i)
    if (t->shape[i] > 1) g = gcd(g, t->strides[i] * bytes);
  return g;
}

// Whether two tensors may share an element. Exact for contiguous data; for strided data columns
// such as x[:, 0] and x[:, 1] are told apart by the common divisor of all steps, and the rest is
// taken as shared.
inline bool overlap(const DLTensor* a, const DLTensor* b) {
  const char *a_low, *a_high, *b_low, *b_high;
  extent(a, &a_low, &a_high);
  extent(b, &b_low, &b_high);
  if (a_high <= b_low || b_high <= a_low) return false;
  if (count(a) == 0 || count(b) == 0) return false;
  const int64_t step = stride_gcd(b, stride_gcd(a, 0));
  if (step == 0) return true;
  int64_t shift = (first_byte(b) - first_byte(a)) % step;
  if (shift < 0) shift += step;
  return shift < element_bytes(a) || shift > step - element_bytes(b);
}

// Whether two indices of one tensor can meet in one element; conservative only for strides that
// no slice, transpose or expand produces.
inline bool self_overlap(const DLTensor* t) {
  if (!t->strides || count(t) == 0) return false;
  int64_t seen = 0;
  bool used[64] = {};
  if (t->ndim > 64) return false;
  for (int32_t round = 0; round < t->ndim; ++round) {
    int32_t best = -1;
    int64_t best_step = 0;
    for (int32_t i = 0; i < t->ndim; ++i) {
      if (used[i] || t->shape[i] == 1) continue;
      const int64_t step = t->strides[i] < 0 ? -t->strides[i] : t->strides[i];
      if (best < 0 || step < best_step) best = i, best_step = step;
    }
    if (best < 0) return false;
    used[best] = true;
    if (best_step <= seen) return true;
    seen += best_step * (t->shape[best] - 1);
  }
  return false;
}

inline bool same_shape(const DLTensor* a, const DLTensor* b) {
  if (a->ndim != b->ndim) return false;
  for (int32_t i = 0; i < a->ndim; ++i) {
    if (a->shape[i] != b->shape[i]) return false;
  }
  return true;
}

inline void fill_view(const tp_guard* g, const tp_guard_arg* a, const DLTensor* t, int32_t code,
                      int64_t numel, tp_view* v) {
  v->data = first_byte(t);
  v->shape = t->shape;
  v->strides = t->strides;
  v->numel = numel;
  v->ndim = t->ndim;
  v->dtype = code;
  v->guard = g;
  v->arg = a;
  if (!t->strides && t->ndim <= TP_VIEW_INLINE_STRIDES) {
    int64_t step = 1;
    for (int32_t i = t->ndim - 1; i >= 0; --i) {
      v->inline_strides[i] = step;
      step *= t->shape[i];
    }
    v->strides = v->inline_strides;
  }
}

}  // namespace tp_rt

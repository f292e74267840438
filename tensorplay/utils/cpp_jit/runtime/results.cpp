// What kernels ask of their views while they run, and the results that they allocate.
#include <tvm/ffi/extra/c_env_api.h>

#include <string>

#include "guard_tensors.h"
#include "guard_texts.h"

using namespace tp_rt;

extern "C" {

void tp_rt_no_value(const tp_view* v) {
  const std::string text = where(v->guard, v->arg) +
                           "it is None here, and its value was asked for. Ask has_value() first.";
  tp_rt_throw("RuntimeError", text.c_str());
}

void tp_rt_no_member(const tp_view* v, int64_t index) {
  const std::string text = where(v->guard, v->arg) + "index " + std::to_string(index) +
                           " is outside its " + std::to_string(v->numel) +
                           (v->numel == 1 ? " member." : " members.");
  tp_rt_throw("IndexError", text.c_str());
}

const tp_view* tp_rt_allocate_result(tp_result* r, const int64_t* shape, int32_t ndim) {
  const auto output = [r] {
    return "[" + std::string(r->guard->name) + "] output '" + r->arg->name + "': ";
  };
  if (r->tensor) {
    const std::string text = output() + "allocate is called a second time. Call it once.";
    tp_rt_throw("RuntimeError", text.c_str());
  }
  if (r->arg->rank >= 0 && ndim != r->arg->rank) {
    const std::string text = output() + "expected " + std::to_string(r->arg->rank) +
                             " sizes, as its C++ type says, got " + tuple_text(shape, ndim) + ".";
    tp_rt_throw("ValueError", text.c_str());
  }
  for (int32_t i = 0; i < ndim; ++i) {
    if (shape[i] >= 0) continue;
    const std::string text = output() + "allocate got the sizes " + tuple_text(shape, ndim) +
                             ", expected none below 0.";
    tp_rt_throw("ValueError", text.c_str());
  }
  DLTensor wanted{};
  wanted.device = {kDLCPU, 0};
  wanted.ndim = ndim;
  wanted.dtype = r->dtype;
  wanted.shape = const_cast<int64_t*>(shape);
  if (TVMFFIEnvTensorAlloc(&wanted, &r->tensor) != 0) {
    r->tensor = nullptr;
    tp_rt_throw_raised();
  }
  const DLTensor* made = TVMFFITensorGetDLTensorPtr(r->tensor);
  fill_view(r->guard, r->arg, made, dtype_code(r->dtype), Elements(made).count, &r->view);
  return &r->view;
}

int tp_rt_take_results(tp_result* results, int32_t count, TVMFFIAny* result) {
  for (int32_t i = 0; i < count; ++i) {
    if (results[i].tensor) continue;
    return fail("RuntimeError", "[" + std::string(results[i].guard->name) + "] output '" +
                                    results[i].arg->name + "': the kernel has not allocated it. Call " +
                                    results[i].arg->name + ".allocate(…) on every way through it.");
  }
  TVMFFIAny tensors[TP_MAX_RESULTS];
  for (int32_t i = 0; i < count; ++i) {
    tensors[i].type_index = kTVMFFITensor;
    tensors[i].zero_padding = 0;
    tensors[i].v_obj = static_cast<TVMFFIObject*>(results[i].tensor);
  }
  if (count == 1) {
    *result = tensors[0];
    results[0].tensor = nullptr;
    return 0;
  }
  const TVMFFIByteArray name = {"ffi.Array", 9};
  TVMFFIObjectHandle make = nullptr;
  if (TVMFFIFunctionGetGlobal(&name, &make) != 0) return -1;
  const int failed = TVMFFIFunctionCall(make, tensors, count, result);
  TVMFFIObjectDecRef(make);
  return failed;
}

void tp_rt_drop_results(tp_result* results, int32_t count) {
  for (int32_t i = 0; i < count; ++i)
    if (results[i].tensor) TVMFFIObjectDecRef(results[i].tensor);
}

void tp_rt_bad_index(const tp_view* v, int64_t index, int64_t bound, int32_t dim) {
  std::string text = where(v->guard, v->arg);
  if (dim == -2)
    text += "dimension " + std::to_string(index) + " asked of a view of " + std::to_string(bound) +
            (bound == 1 ? " dimension." : " dimensions.");
  else if (dim == -1)
    text += "index " + std::to_string(index) + " is outside its " + std::to_string(bound) +
            " elements (shape " + tuple_text(v->shape, v->ndim) + ").";
  else
    text += "index " + std::to_string(index) + " is outside dimension " + std::to_string(dim) +
            " of size " + std::to_string(bound) + " (shape " + tuple_text(v->shape, v->ndim) + ").";
  tp_rt_throw("IndexError", text.c_str());
}

void tp_rt_bad_rank(const tp_view* v, int32_t given) {
  const std::string text = where(v->guard, v->arg) + "indexed with " + std::to_string(given) +
                           " indices, it has " + std::to_string(v->ndim) + " dimensions (shape " +
                           tuple_text(v->shape, v->ndim) + ").";
  tp_rt_throw("IndexError", text.c_str());
}

}  // extern "C"

// Words of the guards' messages; see tensorplay/guard.h.
#pragma once

#include <tensorplay/guard.h>
#include <tensorplay/runtime.h>

#include <string>

namespace tp_rt {

const char* const kDtypeNames[TP_DTYPE_COUNT] = {
    "bool",  "uint8",   "int8",     "uint16",  "int16",   "uint32",    "int32",     "uint64",
    "int64", "float16", "bfloat16", "float32", "float64", "complex64", "complex128"};

// The method that casts to a dtype, where tensors have a short one.
const char* const kCasts[TP_DTYPE_COUNT] = {
    ".bool()", nullptr, nullptr, nullptr,  ".short()", nullptr, ".int()", nullptr,
    ".long()", ".half()", ".bfloat16()", ".float()", ".double()", nullptr, nullptr};

// The element types by DLPack's code and by the binary logarithm of their bits; -1: none.
const int8_t kDtypeCodes[kDLBool + 1][8] = {
    {-1, -1, -1, TP_DTYPE_INT8, TP_DTYPE_INT16, TP_DTYPE_INT32, TP_DTYPE_INT64, -1},
    {TP_DTYPE_BOOL, -1, -1, TP_DTYPE_UINT8, TP_DTYPE_UINT16, TP_DTYPE_UINT32, TP_DTYPE_UINT64, -1},
    {-1, -1, -1, -1, TP_DTYPE_FLOAT16, TP_DTYPE_FLOAT32, TP_DTYPE_FLOAT64, -1},
    {-1, -1, -1, -1, -1, -1, -1, -1},
    {-1, -1, -1, -1, TP_DTYPE_BFLOAT16, -1, -1, -1},
    {-1, -1, -1, -1, -1, -1, TP_DTYPE_COMPLEX64, TP_DTYPE_COMPLEX128},
    {-1, -1, -1, TP_DTYPE_BOOL, -1, -1, -1, -1},
};
static_assert(kDLInt == 0 && kDLUInt == 1 && kDLFloat == 2 && kDLBfloat == 4 && kDLComplex == 5 &&
              kDLBool == 6);

inline int32_t dtype_code(DLDataType t) {
  const bool known = t.lanes == 1 && t.code <= kDLBool && t.bits && !(t.bits & (t.bits - 1));
  return known ? kDtypeCodes[t.code][__builtin_ctz(t.bits)] : -1;
}

inline std::string dtype_text(DLDataType t) {
  const int32_t code = dtype_code(t);
  if (code >= 0) return kDtypeNames[code];
  TVMFFIAny name{};  // the engine's, such as float8_e5m2
  if (TVMFFIDataTypeToString(&t, &name) != 0) {
    TVMFFIObjectHandle error = nullptr;
    TVMFFIErrorMoveFromRaised(&error);
    if (error) TVMFFIObjectDecRef(error);
    return "dtype(code=" + std::to_string(t.code) + ", bits=" + std::to_string(t.bits) +
           ", lanes=" + std::to_string(t.lanes) + ")";
  }
  const TVMFFIByteArray bytes = tp_rt_string(&name);
  const std::string text(bytes.data, bytes.size);
  if (name.type_index >= kTVMFFIStaticObjectBegin) TVMFFIObjectDecRef(name.v_obj);
  return text;
}

inline std::string device_text(DLDevice d) {
  const char* name = nullptr;
  switch (d.device_type) {
    case kDLCPU: return "cpu";
    case kDLCUDA: name = "cuda"; break;
    case kDLCUDAHost: name = "cuda_host"; break;
    case kDLROCM: name = "rocm"; break;
    case kDLMetal: name = "metal"; break;
    case kDLVulkan: name = "vulkan"; break;
    default: break;
  }
  std::string text = name ? name : "device" + std::to_string(static_cast<int>(d.device_type));
  return text + ":" + std::to_string(d.device_id);
}

inline std::string admitted_text(uint32_t dtypes) {
  std::string text;
  int left = __builtin_popcount(dtypes);
  for (int code = 0; code < TP_DTYPE_COUNT; ++code) {
    if (!(dtypes >> code & 1u)) continue;
    text += kDtypeNames[code];
    if (--left == 1) text += " or ";
    else if (left > 1) text += ", ";
  }
  return text;
}

inline std::string tuple_text(const int64_t* values, int32_t n) {
  std::string text = "(";
  for (int32_t i = 0; i < n; ++i) {
    if (i) text += ", ";
    text += std::to_string(values[i]);
  }
  if (n == 1) text += ",";
  return text + ")";
}

inline std::string kind_text(const TVMFFIAny& value) {
  switch (value.type_index) {
    case kTVMFFINone: return "None";
    case kTVMFFIInt: return "int";
    case kTVMFFIBool: return "bool";
    case kTVMFFIFloat: return "float";
    case kTVMFFIDLTensorPtr:
    case kTVMFFITensor: return "Tensor";
    case kTVMFFIRawStr:
    case kTVMFFISmallStr:
    case kTVMFFIStr: return "str";
    case kTVMFFISmallBytes:
    case kTVMFFIBytes:
    case kTVMFFIByteArrayPtr: return "bytes";
    case kTVMFFIDataType: return "dtype";
    case kTVMFFIDevice: return "device";
    case kTVMFFIFunction: return "function";
    case kTVMFFIArray: return "list";
    case kTVMFFIMap: return "dict";
    case kTVMFFIBigInt: return "int";
    case kTVMFFIOpaquePyObject: return "Python object";
    default: break;
  }
  const TVMFFITypeInfo* info = TVMFFIGetTypeInfo(value.type_index);
  if (info) return std::string(info->type_key.data, info->type_key.size);
  return "type " + std::to_string(value.type_index);
}

inline std::string where(const tp_guard* g, const tp_guard_arg* a) {
  return "[" + std::string(g->name) + "] argument '" + a->name + "': ";
}

inline int fail(const char* kind, const std::string& message) {
  return tp_rt_raise(kind, message.c_str());
}

}  // namespace tp_rt

// Table-driven argument guards; see tensorplay/guard.h. Compiled once into the run-time library.
#include <tensorplay/guard.h>
#include <tensorplay/runtime.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <new>
#include <string>

namespace {

const char* const kDtypeNames[TP_DTYPE_COUNT] = {
    "bool",  "uint8",   "int8",     "uint16",  "int16",   "uint32",    "int32",     "uint64",
    "int64", "float16", "bfloat16", "float32", "float64", "complex64", "complex128"};

// The method that casts to a dtype, where tensors have a short one.
const char* const kCasts[TP_DTYPE_COUNT] = {
    ".bool()", nullptr, nullptr, nullptr,  ".short()", nullptr, ".int()", nullptr,
    ".long()", ".half()", ".bfloat16()", ".float()", ".double()", nullptr, nullptr};

int32_t dtype_code(DLDataType t) {
  if (t.lanes != 1) return -1;
  switch (t.code) {
    case kDLBool:
      return t.bits == 8 ? TP_DTYPE_BOOL : -1;
    case kDLUInt:
      switch (t.bits) {
        case 1: return TP_DTYPE_BOOL;
        case 8: return TP_DTYPE_UINT8;
        case 16: return TP_DTYPE_UINT16;
        case 32: return TP_DTYPE_UINT32;
        case 64: return TP_DTYPE_UINT64;
      }
      return -1;
    case kDLInt:
      switch (t.bits) {
        case 8: return TP_DTYPE_INT8;
        case 16: return TP_DTYPE_INT16;
        case 32: return TP_DTYPE_INT32;
        case 64: return TP_DTYPE_INT64;
      }
      return -1;
    case kDLFloat:
      switch (t.bits) {
        case 16: return TP_DTYPE_FLOAT16;
        case 32: return TP_DTYPE_FLOAT32;
        case 64: return TP_DTYPE_FLOAT64;
      }
      return -1;
    case kDLBfloat:
      return t.bits == 16 ? TP_DTYPE_BFLOAT16 : -1;
    case kDLComplex:
      switch (t.bits) {
        case 64: return TP_DTYPE_COMPLEX64;
        case 128: return TP_DTYPE_COMPLEX128;
      }
      return -1;
  }
  return -1;
}

std::string dtype_text(DLDataType t) {
  const int32_t code = dtype_code(t);
  if (code >= 0) return kDtypeNames[code];
  return "dtype(code=" + std::to_string(t.code) + ", bits=" + std::to_string(t.bits) +
         ", lanes=" + std::to_string(t.lanes) + ")";
}

std::string device_text(DLDevice d) {
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

std::string admitted_text(uint32_t dtypes) {
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

std::string tuple_text(const int64_t* values, int32_t n) {
  std::string text = "(";
  for (int32_t i = 0; i < n; ++i) {
    if (i) text += ", ";
    text += std::to_string(values[i]);
  }
  if (n == 1) text += ",";
  return text + ")";
}

std::string kind_text(const TVMFFIAny& value) {
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

std::string where(const tp_guard* g, const tp_guard_arg* a) {
  return "[" + std::string(g->name) + "] argument '" + a->name + "': ";
}

int fail(const char* kind, const std::string& message) {
  return tp_rt_raise(kind, message.c_str());
}

const DLTensor* tensor_of(const TVMFFIAny& value) {
  if (value.type_index == kTVMFFIDLTensorPtr) return static_cast<const DLTensor*>(value.v_ptr);
  if (value.type_index == kTVMFFITensor) return TVMFFITensorGetDLTensorPtr(value.v_obj);
  return nullptr;
}

// The members of a list; null for anything else. The engine's two lists begin alike.
const TVMFFISeqCell* list_of(const TVMFFIAny& value) {
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

int64_t element_bytes(const DLTensor* t) { return (t->dtype.bits * t->dtype.lanes + 7) / 8; }

int64_t count(const DLTensor* t) {
  int64_t n = 1;
  for (int32_t i = 0; i < t->ndim; ++i) n *= t->shape[i];
  return n;
}

bool contiguous(const DLTensor* t) {
  if (!t->strides) return true;
  int64_t step = 1;
  bool dense = true;
  for (int32_t i = t->ndim - 1; i >= 0; --i) {
    const int64_t size = t->shape[i];
    if (size == 1) continue;
    if (size == 0) return true;
    dense = dense && t->strides[i] == step;
    step *= size;
  }
  return dense;
}

char* first_byte(const DLTensor* t) { return static_cast<char*>(t->data) + t->byte_offset; }

// Lowest byte and one past the highest byte that the tensor's elements occupy.
void extent(const DLTensor* t, const char** low, const char** high) {
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

int64_t gcd(int64_t a, int64_t b) {
  while (b) {
    const int64_t r = a % b;
    a = b;
    b = r;
  }
  return a < 0 ? -a : a;
}

int64_t stride_gcd(const DLTensor* t, int64_t g) {
  const int64_t bytes = element_bytes(t);
  if (!t->strides) return gcd(g, bytes);
  for (int32_t i = 0; i < t->ndim; ++i)
    if (t->shape[i] > 1) g = gcd(g, t->strides[i] * bytes);
  return g;
}

// Whether two tensors may share an element. Exact for contiguous data; for strided data columns
// such as x[:, 0] and x[:, 1] are told apart by the common divisor of all steps, and the rest is
// taken as shared.
bool overlap(const DLTensor* a, const DLTensor* b) {
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
bool self_overlap(const DLTensor* t) {
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

int wrong_count(const tp_guard* g, int32_t got) {
  std::string names;
  for (int32_t i = 0; i < g->num_args; ++i) names += (i ? ", " : "") + std::string(g->args[i].name);
  return fail("TypeError", "[" + std::string(g->name) + "] expected " +
                               std::to_string(g->num_args) +
                               (g->num_args == 1 ? " argument" : " arguments") +
                               (names.empty() ? "" : " (" + names + ")") + ", got " +
                               std::to_string(got) + ". Call " + g->name + "(" + names + ").");
}

int wrong_kind(const tp_guard* g, const tp_guard_arg* a, const TVMFFIAny& value) {
  const char* expected = "";
  std::string advice;
  const std::string name = a->name;
  switch (a->kind) {
    case TP_KIND_TENSOR:
      expected = a->flags & TP_FLAG_LIST       ? "list of tensors"
                 : a->flags & TP_FLAG_OPTIONAL ? "Tensor, NumPy array or None"
                                               : "Tensor or NumPy array";
      if (a->flags & TP_FLAG_LIST) {
        advice = tensor_of(value) ? "Write [" + name + "]." : "Pass a list of tensors.";
        break;
      }
      advice = value.type_index == kTVMFFINone ? "Pass a tensor." : "Write tp.tensor(" + name + ").";
      break;
    case TP_KIND_INT:
      expected = "int";
      advice = value.type_index == kTVMFFIFloat ? "Write int(" + name + ")." : "Pass an int.";
      break;
    case TP_KIND_FLOAT:
      expected = "float";
      advice = tensor_of(value) ? "Write " + name + ".item()." : "Pass a float.";
      break;
    case TP_KIND_BOOL:
      expected = "bool";
      advice = "Pass True or False.";
      break;
    default:
      break;
  }
  return fail("TypeError",
              where(g, a) + "expected " + expected + ", got " + kind_text(value) + ". " + advice);
}

int out_of_range(const tp_guard* g, const tp_guard_arg* a, const std::string& got) {
  return fail("ValueError", where(g, a) + "expected an integer from " + std::to_string(a->low) +
                                " to " + std::to_string(a->high) + " (C++ type " + a->type +
                                "), got " + got + ". Declare the parameter int64_t in the cell if " +
                                "larger values are meant.");
}

int check_scalar(const tp_guard* g, const tp_guard_arg* a, const TVMFFIAny& value) {
  const int32_t t = value.type_index;
  switch (a->kind) {
    case TP_KIND_INT:
      if (t == kTVMFFIBigInt) return out_of_range(g, a, "an integer beyond 64 bits");
      if (t != kTVMFFIInt && t != kTVMFFIBool) return wrong_kind(g, a, value);
      if (value.v_int64 < a->low || value.v_int64 > a->high)
        return out_of_range(g, a, std::to_string(value.v_int64));
      return 0;
    case TP_KIND_FLOAT:
      if (t != kTVMFFIInt && t != kTVMFFIBool && t != kTVMFFIFloat) return wrong_kind(g, a, value);
      return 0;
    case TP_KIND_BOOL:
      if (t != kTVMFFIInt && t != kTVMFFIBool) return wrong_kind(g, a, value);
      return 0;
    default:
      return 0;
  }
}

// Whether an element of a dtype can be this number: integers have to be whole and in range, and a
// finite number must not become infinite. Rounding is what floats are for.
bool holds(int32_t dtype, const TVMFFIAny& value) {
  const bool whole = value.type_index != kTVMFFIFloat;
  const double number = whole ? static_cast<double>(value.v_int64) : value.v_float64;
  int bits = 0;
  bool is_signed = true;
  switch (dtype) {
    case TP_DTYPE_BOOL: return number == 0 || number == 1;
    case TP_DTYPE_UINT8: bits = 8, is_signed = false; break;
    case TP_DTYPE_INT8: bits = 8; break;
    case TP_DTYPE_UINT16: bits = 16, is_signed = false; break;
    case TP_DTYPE_INT16: bits = 16; break;
    case TP_DTYPE_UINT32: bits = 32, is_signed = false; break;
    case TP_DTYPE_INT32: bits = 32; break;
    case TP_DTYPE_UINT64: bits = 64, is_signed = false; break;
    case TP_DTYPE_INT64: bits = 64; break;
    case TP_DTYPE_FLOAT16: return !std::isfinite(number) || std::fabs(number) < 65520.0;
    case TP_DTYPE_BFLOAT16: return !std::isfinite(number) || std::fabs(number) < 0x1.ffp+127;
    case TP_DTYPE_FLOAT32:
    case TP_DTYPE_COMPLEX64:
      return !std::isfinite(number) || std::isfinite(static_cast<float>(number));
    default: return true;
  }
  if (whole && bits == 64) return is_signed || value.v_int64 >= 0;
  const double end = std::ldexp(1.0, is_signed ? bits - 1 : bits);
  return number == std::trunc(number) && number < end && number >= (is_signed ? -end : 0.0);
}

int unheld(const tp_guard* g, const tp_guard_arg* a, const TVMFFIAny& value, int32_t dtype) {
  char got[32];
  if (value.type_index == kTVMFFIFloat)
    std::snprintf(got, sizeof got, "%.17g", value.v_float64);
  else
    std::snprintf(got, sizeof got, "%lld", static_cast<long long>(value.v_int64));
  const std::string name = kDtypeNames[dtype];
  const bool varies = a->variable >= 0;
  const std::string why = varies ? ", as " + std::string(a->type) + " is here," : "";
  return fail("ValueError",
              where(g, a) + "expected a number that " + name + why + " can hold, got " + got + ". " +
                  (varies ? "Pass tensors of a dtype that holds it, such as float64, or declare "
                            "the parameter double in the cell."
                          : "Declare the parameter double in the cell if such values are meant."));
}

const char* device_word(const tp_guard* g) { return g->device == kDLCUDA ? "cuda" : "cpu"; }

// Whether a tensor lies where the kernel runs.
bool is_there(const tp_guard* g, const DLTensor* t) {
  if (g->device != kDLCUDA) return t->device.device_type == kDLCPU;
  return t->device.device_type == kDLCUDA || t->device.device_type == kDLCUDAManaged;
}

int wrong_device(const tp_guard* g, const tp_guard_arg* a, const DLTensor* t) {
  const std::string name = a->name;
  return fail("ValueError",
              where(g, a) + "expected " +
                  (a->dtypes ? admitted_text(a->dtypes) : dtype_text(t->dtype)) + " on " +
                  device_word(g) + ", got " + dtype_text(t->dtype) + " on " +
                  device_text(t->device) + ". " +
                  (g->device == kDLCUDA
                       ? "Pass a tensor on a GPU, such as cupy.asarray(" + name + ")."
                       : "Write " + name + ".cpu()."));
}

int wrong_dtype(const tp_guard* g, const tp_guard_arg* a, const DLTensor* t, uint32_t admitted,
                const std::string& because) {
  const std::string name = a->name;
  const int32_t first = __builtin_ctz(admitted);
  std::string advice;
  if (a->flags & TP_FLAG_WRITES) {
    advice = "It is written, so make it " + std::string(kDtypeNames[first]) +
             " from the start: a cast would receive the result instead.";
  } else {
    advice = "Write " + name +
             (kCasts[first] ? kCasts[first] : ".to(tp." + std::string(kDtypeNames[first]) + ")") +
             ", or " + name + ".astype('" + kDtypeNames[first] + "') for a NumPy array.";
  }
  return fail("TypeError", where(g, a) + "expected " + admitted_text(admitted) + " on " +
                               device_word(g) + because + ", got " + dtype_text(t->dtype) + " on " +
                               device_text(t->device) + ". " + advice);
}

int check_layout(const tp_guard* g, const tp_guard_arg* a, const DLTensor* t) {
  const bool dense = contiguous(t);
  if ((a->flags & TP_FLAG_CONTIGUOUS) && !dense) {
    const std::string name = a->name;
    const std::string advice =
        a->flags & TP_FLAG_WRITES
            ? "It is written, so pass contiguous memory: a copy would receive the result instead."
        : g->device == kDLCUDA
            ? "Write cupy.ascontiguousarray(" + name + ")."
            : "Write " + name + ".contiguous(), or np.ascontiguousarray(" + name +
                  ") for a NumPy array.";
    const std::string expected = a->dtypes ? admitted_text(a->dtypes) + " in " : "";
    return fail("ValueError", where(g, a) + "expected " + expected + "contiguous memory, got " +
                                  dtype_text(t->dtype) + " with strides " +
                                  tuple_text(t->strides, t->ndim) + " for shape " +
                                  tuple_text(t->shape, t->ndim) + ". " + advice);
  }
  if ((a->flags & TP_FLAG_WRITES) && !dense && self_overlap(t))
    return fail("ValueError", where(g, a) +
                                  "expected memory of its own for each element, got strides " +
                                  tuple_text(t->strides, t->ndim) + " for shape " +
                                  tuple_text(t->shape, t->ndim) + ". Write " + a->name +
                                  ".clone().");
  return 0;
}

int check_dims(const tp_guard* g, const tp_guard_arg* a, const DLTensor* t, int64_t* sizes,
               const char** owners) {
  for (int32_t d = 0; d < t->ndim; ++d) {
    const tp_dim& dim = a->dims[d];
    if (dim.symbol == TP_DIM_FREE) continue;
    const int64_t got = t->shape[d];
    if (dim.symbol == TP_DIM_LITERAL) {
      if (got == dim.value) continue;
      return fail("ValueError", where(g, a) + "expected size " + std::to_string(dim.value) +
                                    " in dimension " + std::to_string(d) + ", got " +
                                    std::to_string(got) + " (shape " +
                                    tuple_text(t->shape, t->ndim) +
                                    "). The front matter's shape declares it.");
    }
    if (!owners[dim.symbol]) {
      sizes[dim.symbol] = got;
      owners[dim.symbol] = a->name;
    } else if (sizes[dim.symbol] != got) {
      return fail("ValueError", where(g, a) + "expected size " + std::to_string(sizes[dim.symbol]) +
                                    " in dimension " + std::to_string(d) + " (" +
                                    g->symbols[dim.symbol] + ", as argument '" +
                                    owners[dim.symbol] + "' has), got " + std::to_string(got) +
                                    " (shape " + tuple_text(t->shape, t->ndim) +
                                    "). The front matter's shape declares it.");
    }
  }
  return 0;
}

bool same_shape(const DLTensor* a, const DLTensor* b) {
  if (a->ndim != b->ndim) return false;
  for (int32_t i = 0; i < a->ndim; ++i) {
    if (a->shape[i] != b->shape[i]) return false;
  }
  return true;
}

void fill_view(const tp_guard* g, const tp_guard_arg* a, const DLTensor* t, tp_view* v) {
  v->data = first_byte(t);
  v->shape = t->shape;
  v->strides = t->strides;
  v->numel = count(t);
  v->ndim = t->ndim;
  v->dtype = dtype_code(t->dtype);
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

// The first tensor among the arguments that must have one shape with that at `position`, which is
// absent or a list where it comes first by its number; null where all of them are absent.
const DLTensor* first_of_group(const tp_guard* g, const TVMFFIAny* args, int32_t position,
                               int32_t* owner) {
  const int32_t group = g->args[position].like >= 0 ? g->args[position].like : position;
  for (int32_t i = group; i <= position; ++i) {
    if (i != group && g->args[i].like != group) continue;
    const Members members(args[i]);
    for (int64_t k = 0; k < members.count; ++k) {
      if (const DLTensor* found = tensor_of(members.first[k])) {
        *owner = i;
        return found;
      }
    }
  }
  return nullptr;
}

// How messages call the tensor that gives the others their shape: the first one of a list.
std::string label(const tp_guard* g, const TVMFFIAny* args, int32_t position) {
  const std::string name = g->args[position].name;
  return list_of(args[position]) ? name + "[0]" : name;
}

int check_tensor(const tp_guard* g, const tp_guard_arg* a, const DLTensor* t,
                 const TVMFFIAny* args, int32_t position, int64_t* sizes, const char** owners,
                 int32_t* codes, const char** code_owners) {
  if (!is_there(g, t)) return wrong_device(g, a, t);
  const int32_t code = dtype_code(t->dtype);
  if (a->dtypes && (code < 0 || !(a->dtypes >> code & 1u)))
    return wrong_dtype(g, a, t, a->dtypes, "");
  if (a->variable >= 0) {
    if (!code_owners[a->variable]) {
      codes[a->variable] = code;
      code_owners[a->variable] = a->name;
    } else if (codes[a->variable] != code) {
      return wrong_dtype(g, a, t, 1u << codes[a->variable],
                         " as argument '" + std::string(code_owners[a->variable]) + "'");
    }
  }
  if (a->rank >= 0 && t->ndim != a->rank)
    return fail("ValueError", where(g, a) + "expected " + std::to_string(a->rank) +
                                  (a->rank == 1 ? " dimension" : " dimensions") + ", got " +
                                  std::to_string(t->ndim) + " (shape " +
                                  tuple_text(t->shape, t->ndim) + "). Write " + a->name +
                                  ".reshape(...) with " + std::to_string(a->rank) +
                                  (a->rank == 1 ? " size." : " sizes."));
  if (a->like >= 0 || a->flags & TP_FLAG_ALIKE) {
    int32_t owner = a->like;
    const DLTensor* other = owner >= 0 ? tensor_of(args[owner]) : nullptr;
    if (!other) other = first_of_group(g, args, position, &owner);
    if (other && !same_shape(t, other))
      return fail("ValueError", where(g, a) + "expected shape " +
                                    tuple_text(other->shape, other->ndim) + " as argument '" +
                                    label(g, args, owner) + "', got " +
                                    tuple_text(t->shape, t->ndim) +
                                    ". Expand or reshape it; where other shapes are meant, " +
                                    "declare them with shape: in the front matter.");
  }
  if (a->dims) {
    const int failed = check_dims(g, a, t, sizes, owners);
    if (failed) return failed;
  }
  return check_layout(g, a, t);
}

int check_same_gpu(const tp_guard* g, const tp_guard_arg* a, const DLTensor* t,
                   const DLTensor* first, const char* first_name) {
  if (t->device.device_id == first->device.device_id) return 0;
  return fail("ValueError", where(g, a) + "expected a tensor on " + device_text(first->device) +
                                " as argument '" + first_name + "', got one on " +
                                device_text(t->device) + ". Move it there.");
}

// Another tensor of the call that shares memory with a written one; null where none does.
const tp_guard_arg* shared_with(const tp_guard* g, const TVMFFIAny* args, const TVMFFIAny* written) {
  for (int32_t j = 0; j < g->num_args; ++j) {
    if (g->args[j].kind != TP_KIND_TENSOR || (g->args[j].flags & TP_FLAG_ALIAS_OK)) continue;
    const Members members(args[j]);
    for (int64_t k = 0; k < members.count; ++k) {
      const DLTensor* other = &members.first[k] == written ? nullptr : tensor_of(members.first[k]);
      if (other && overlap(tensor_of(*written), other)) return &g->args[j];
    }
  }
  return nullptr;
}

int check_aliases(const tp_guard* g, const TVMFFIAny* args) {
  for (int32_t i = 0; i < g->num_args; ++i) {
    if (!(g->args[i].flags & TP_FLAG_WRITES) || (g->args[i].flags & TP_FLAG_ALIAS_OK)) continue;
    const Members members(args[i]);
    for (int64_t k = 0; k < members.count; ++k) {
      if (!tensor_of(members.first[k])) continue;
      const tp_guard_arg* other = shared_with(g, args, &members.first[k]);
      if (!other) continue;
      return fail("ValueError", where(g, &g->args[i]) + "expected memory of its own, got memory " +
                                    "shared with argument '" + other->name + "'. Pass " +
                                    other->name + ".clone(), or a new tensor for '" +
                                    g->args[i].name + "'.");
    }
  }
  return 0;
}

void absent_view(const tp_guard* g, const tp_guard_arg* a, tp_view* v) {
  v->data = nullptr;
  v->shape = v->strides = nullptr;
  v->numel = 0;
  v->ndim = TP_ABSENT;
  v->guard = g;
  v->arg = a;
}

// What a call has found out so far.
struct Call {
  const tp_guard* g;
  const TVMFFIAny* args;
  int32_t* codes;
  int64_t sizes[TP_MAX_SYMBOLS];
  const char* owners[TP_MAX_SYMBOLS];
  const char* code_owners[TP_DTYPE_COUNT];
  const DLTensor* first;  // of the tensors on a GPU
  const char* first_name;
  int32_t written;
};

int check_one(Call* c, const tp_guard_arg* a, int32_t position, const TVMFFIAny& value,
              bool may_be_absent, tp_view* view) {
  if (may_be_absent && value.type_index == kTVMFFINone) {
    if (view) absent_view(c->g, a, view);
    return 0;
  }
  const DLTensor* t = tensor_of(value);
  if (!t) return wrong_kind(c->g, a, value);
  int failed = check_tensor(c->g, a, t, c->args, position, c->sizes, c->owners, c->codes,
                            c->code_owners);
  if (failed) return failed;
  if (c->g->device == kDLCUDA) {
    if (!c->first) c->first = t, c->first_name = c->g->args[position].name;
    if ((failed = check_same_gpu(c->g, a, t, c->first, c->first_name))) return failed;
  }
  if (view) fill_view(c->g, a, t, view);
  c->written += (a->flags & TP_FLAG_WRITES) != 0;
  return 0;
}

int check_list(Call* c, const tp_guard_arg* a, int32_t position, tp_view* view) {
  const TVMFFIAny& value = c->args[position];
  if (!list_of(value)) return wrong_kind(c->g, a, value);
  const Members members(value);
  tp_view* views = nullptr;
  if (view) {
    views = new (std::nothrow) tp_view[static_cast<size_t>(members.count)];
    if (!views) return fail("MemoryError", where(c->g, a) + "no memory for its views.");
    view->data = views;
    view->shape = view->strides = nullptr;
    view->numel = members.count;
    view->ndim = TP_MEMBERS;
    view->guard = c->g;
    view->arg = a;
  }
  const bool absent = a->flags & TP_FLAG_ABSENT_MEMBERS;
  for (int64_t k = 0; k < members.count; ++k) {
    tp_view* member = views ? views + k : nullptr;
    if (!check_one(c, a, position, members.first[k], absent, member)) continue;
    // Once more, for the message to name the member.
    const std::string name = std::string(a->name) + "[" + std::to_string(k) + "]";
    tp_guard_arg named = *a;
    named.name = name.c_str();
    named.flags &= ~static_cast<uint32_t>(TP_FLAG_LIST);
    if (absent) named.flags |= TP_FLAG_OPTIONAL;
    return check_one(c, &named, position, members.first[k], absent, member);
  }
  return 0;
}

int check_call(Call* c, tp_view* views) {
  const tp_guard* g = c->g;
  int32_t tensors = 0;
  for (int32_t i = 0; i < g->num_args; ++i) {
    const tp_guard_arg* a = &g->args[i];
    if (a->kind != TP_KIND_TENSOR) {
      const int failed = check_scalar(g, a, c->args[i]);
      if (failed) return failed;
      continue;
    }
    tp_view* view = views ? &views[tensors] : nullptr;
    ++tensors;
    const int failed = a->flags & TP_FLAG_LIST
                           ? check_list(c, a, i, view)
                           : check_one(c, a, i, c->args[i], a->flags & TP_FLAG_OPTIONAL, view);
    if (failed) return failed;
  }
  // A type that no tensor of the call has decides nothing, so any of its instances will do.
  for (int32_t v = 0; v < g->num_variables; ++v) {
    for (int32_t i = 0; i < g->num_args && !c->code_owners[v]; ++i) {
      const tp_guard_arg* a = &g->args[i];
      if (a->kind != TP_KIND_TENSOR || a->variable != v || !a->dtypes) continue;
      c->codes[v] = __builtin_ctz(a->dtypes);
      c->code_owners[v] = a->name;
    }
  }
  for (int32_t i = 0; i < g->num_args; ++i) {
    const tp_guard_arg* a = &g->args[i];
    if (a->kind != TP_KIND_FLOAT) continue;
    int32_t dtype = -1;
    if (a->variable >= 0 && c->codes) dtype = c->codes[a->variable];
    if (a->variable < 0 && a->dtypes) dtype = __builtin_ctz(a->dtypes);
    if (dtype >= 0 && !holds(dtype, c->args[i])) return unheld(g, a, c->args[i], dtype);
  }
  const bool several = tensors > 1 || (tensors == 1 && c->written > 1);
  return c->written && several ? check_aliases(g, c->args) : 0;
}

}  // namespace

extern "C" {

int tp_rt_guard(const tp_guard* g, const TVMFFIAny* args, int32_t num_args, tp_view* views,
                int32_t* codes) {
  if (num_args != g->num_args) return wrong_count(g, num_args);
  Call c;
  c.g = g;
  c.args = args;
  c.codes = codes;
  c.first = nullptr;
  c.first_name = "";
  c.written = 0;
  for (int32_t i = 0; i < g->num_symbols; ++i) c.owners[i] = nullptr;
  for (int32_t i = 0; i < g->num_variables; ++i) c.code_owners[i] = nullptr;
  int32_t tensors = 0;
  bool lists = false;
  for (int32_t i = 0; i < num_args; ++i) {
    if (g->args[i].kind != TP_KIND_TENSOR) continue;
    if (g->args[i].flags & TP_FLAG_LIST) lists = true;
    ++tensors;
  }
  if (!lists || !views) return check_call(&c, views);
  for (int32_t i = 0; i < tensors; ++i) views[i].ndim = TP_ABSENT;
  const int failed = check_call(&c, views);
  if (failed) tp_rt_free_members(views, tensors);
  return failed;
}

void tp_rt_free_members(tp_view* views, int32_t count) {
  for (int32_t i = 0; i < count; ++i)
    if (views[i].ndim == TP_MEMBERS) delete[] static_cast<tp_view*>(views[i].data);
}

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
  const std::string output = "[" + std::string(r->guard->name) + "] output '" + r->arg->name + "': ";
  if (r->tensor) {
    const std::string text = output + "allocate is called a second time. Call it once.";
    tp_rt_throw("RuntimeError", text.c_str());
  }
  if (r->arg->rank >= 0 && ndim != r->arg->rank) {
    const std::string text = output + "expected " + std::to_string(r->arg->rank) +
                             " sizes, as its C++ type says, got " + tuple_text(shape, ndim) + ".";
    tp_rt_throw("ValueError", text.c_str());
  }
  for (int32_t i = 0; i < ndim; ++i) {
    if (shape[i] >= 0) continue;
    const std::string text = output + "allocate got the sizes " + tuple_text(shape, ndim) +
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
  fill_view(r->guard, r->arg, TVMFFITensorGetDLTensorPtr(r->tensor), &r->view);
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

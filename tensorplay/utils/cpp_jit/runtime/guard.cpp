// Table-driven argument guards; see tensorplay/guard.h. Compiled once into the run-time library.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <new>
#include <string>

#include "guard_tensors.h"
#include "guard_texts.h"

namespace {

using namespace tp_rt;

// What says what is wrong stands apart, so that the way through a call that is right needs no room
// for its texts.
#define COLD __attribute__((noinline, cold))

COLD int wrong_count(const tp_guard* g, int32_t got) {
  std::string names;
  for (int32_t i = 0; i < g->num_args; ++i) names += (i ? ", " : "") + std::string(g->args[i].name);
  return fail("TypeError", "[" + std::string(g->name) + "] expected " +
                               std::to_string(g->num_args) +
                               (g->num_args == 1 ? " argument" : " arguments") +
                               (names.empty() ? "" : " (" + names + ")") + ", got " +
                               std::to_string(got) + ". Call " + g->name + "(" + names + ").");
}

COLD int wrong_kind(const tp_guard* g, const tp_guard_arg* a, const TVMFFIAny& value) {
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

COLD int out_of_range(const tp_guard* g, const tp_guard_arg* a, const std::string& got) {
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

COLD int unheld(const tp_guard* g, const tp_guard_arg* a, const TVMFFIAny& value, int32_t dtype) {
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

COLD int wrong_device(const tp_guard* g, const tp_guard_arg* a, const DLTensor* t) {
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

COLD int wrong_dtype(const tp_guard* g, const tp_guard_arg* a, const DLTensor* t, uint32_t admitted,
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

COLD int not_contiguous(const tp_guard* g, const tp_guard_arg* a, const DLTensor* t) {
  const std::string name = a->name;
  const std::string advice =
      a->flags & TP_FLAG_WRITES
          ? "It is written, so pass contiguous memory: a copy would receive the result instead."
      : g->device == kDLCUDA
          ? "Write " + name + ".contiguous(), or cupy.ascontiguousarray(" + name +
                ") for an array of CuPy."
          : "Write " + name + ".contiguous(), or np.ascontiguousarray(" + name +
                ") for a NumPy array.";
  const std::string expected = a->dtypes ? admitted_text(a->dtypes) + " in " : "";
  return fail("ValueError", where(g, a) + "expected " + expected + "contiguous memory, got " +
                                dtype_text(t->dtype) + " with strides " +
                                tuple_text(t->strides, t->ndim) + " for shape " +
                                tuple_text(t->shape, t->ndim) + ". " + advice);
}

COLD int meets_itself(const tp_guard* g, const tp_guard_arg* a, const DLTensor* t) {
  return fail("ValueError", where(g, a) +
                                "expected memory of its own for each element, got strides " +
                                tuple_text(t->strides, t->ndim) + " for shape " +
                                tuple_text(t->shape, t->ndim) + ". Write " + a->name +
                                ".clone().");
}

COLD int wrong_rank(const tp_guard* g, const tp_guard_arg* a, const DLTensor* t) {
  return fail("ValueError", where(g, a) + "expected " + std::to_string(a->rank) +
                                (a->rank == 1 ? " dimension" : " dimensions") + ", got " +
                                std::to_string(t->ndim) + " (shape " +
                                tuple_text(t->shape, t->ndim) + "). Write " + a->name +
                                ".reshape(...) with " + std::to_string(a->rank) +
                                (a->rank == 1 ? " size." : " sizes."));
}

COLD int other_dtype(const tp_guard* g, const tp_guard_arg* a, const DLTensor* t, int32_t bound,
                     const char* owner) {
  return wrong_dtype(g, a, t, 1u << bound, " as argument '" + std::string(owner) + "'");
}

COLD int wrong_size(const tp_guard* g, const tp_guard_arg* a, const DLTensor* t, int32_t d,
                    int64_t expected, const char* owner) {
  std::string symbol;
  if (owner)
    symbol = " (" + std::string(g->symbols[a->dims[d].symbol]) + ", as argument '" + owner + "' has)";
  return fail("ValueError", where(g, a) + "expected size " + std::to_string(expected) +
                                " in dimension " + std::to_string(d) + symbol + ", got " +
                                std::to_string(t->shape[d]) + " (shape " +
                                tuple_text(t->shape, t->ndim) +
                                "). The front matter's shape declares it.");
}

int check_dims(const tp_guard* g, const tp_guard_arg* a, const DLTensor* t, int64_t* sizes,
               const char** owners) {
  for (int32_t d = 0; d < t->ndim; ++d) {
    const tp_dim& dim = a->dims[d];
    if (dim.symbol == TP_DIM_FREE) continue;
    const int64_t got = t->shape[d];
    if (dim.symbol == TP_DIM_LITERAL) {
      if (got != dim.value) return wrong_size(g, a, t, d, dim.value, nullptr);
    } else if (!owners[dim.symbol]) {
      sizes[dim.symbol] = got;
      owners[dim.symbol] = a->name;
    } else if (sizes[dim.symbol] != got) {
      return wrong_size(g, a, t, d, sizes[dim.symbol], owners[dim.symbol]);
    }
  }
  return 0;
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

COLD int other_shape(const tp_guard* g, const tp_guard_arg* a, const DLTensor* t,
                     const DLTensor* other, const TVMFFIAny* args, int32_t owner) {
  return fail("ValueError", where(g, a) + "expected shape " +
                                tuple_text(other->shape, other->ndim) + " as argument '" +
                                label(g, args, owner) + "', got " +
                                tuple_text(t->shape, t->ndim) +
                                ". Expand or reshape it; where other shapes are meant, " +
                                "declare them with shape: in the front matter.");
}

COLD int other_gpu(const tp_guard* g, const tp_guard_arg* a, const DLTensor* t,
                   const DLTensor* first, const char* first_name) {
  return fail("ValueError", where(g, a) + "expected a tensor on " + device_text(first->device) +
                                " as argument '" + first_name + "', got one on " +
                                device_text(t->device) + ". Move it there.");
}

// Another tensor of the call that shares memory with a written one; null where none does.
const tp_guard_arg* shared_with(const tp_guard* g, const TVMFFIAny* args,
                                const TVMFFIAny* written) {
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

constexpr int32_t kMostSpans = 16;

// The bytes that a tensor of the call lies in.
struct Span {
  const char* low;
  const char* high;
  uint32_t written;
};

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
  Span spans[kMostSpans];
  int32_t tensors;
  uint32_t written;  // TP_FLAG_WRITES where any is
  int32_t filled;  // how many views hold something
};

void add_span(Call* c, const tp_guard_arg* a, const DLTensor* t, const Elements& elements) {
  const uint32_t written = a->flags & TP_FLAG_WRITES;
  c->written |= written;
  if (c->tensors < kMostSpans) {
    Span* span = &c->spans[c->tensors];
    span->written = written;
    if (elements.dense) {
      span->low = first_byte(t);
      span->high = span->low + elements.count * element_bytes(t);
    } else {
      extent(t, &span->low, &span->high);
    }
  }
  ++c->tensors;
}

// Whether a written tensor may share memory with another: by the ends of both, so that most calls
// need no more. Where they are too many to be noted the answer is yes.
bool may_share(const Call* c) {
  if (!c->written || c->tensors < 2) return false;
  if (c->tensors > kMostSpans) return true;
  for (int32_t i = 0; i < c->tensors; ++i) {
    if (!c->spans[i].written) continue;
    for (int32_t j = 0; j < c->tensors; ++j) {
      if (i != j && c->spans[i].low < c->spans[j].high && c->spans[j].low < c->spans[i].high)
        return true;
    }
  }
  return false;
}

int check_like(Call* c, const tp_guard_arg* a, int32_t position, const DLTensor* t) {
  int32_t owner = a->like;
  const DLTensor* other = owner >= 0 ? tensor_of(c->args[owner]) : nullptr;
  if (!other) other = first_of_group(c->g, c->args, position, &owner);
  if (!other || same_shape(t, other)) return 0;
  return other_shape(c->g, a, t, other, c->args, owner);
}

int check_one(Call* c, const tp_guard_arg* a, int32_t position, const TVMFFIAny& value,
              bool may_be_absent, tp_view* view) {
  const tp_guard* g = c->g;
  if (may_be_absent && value.type_index == kTVMFFINone) {
    if (view) absent_view(g, a, view);
    return 0;
  }
  const DLTensor* t = tensor_of(value);
  if (!t) return wrong_kind(g, a, value);
  if (!is_there(g, t)) return wrong_device(g, a, t);
  const int32_t code = dtype_code(t->dtype);
  if (a->dtypes && (code < 0 || !(a->dtypes >> code & 1u)))
    return wrong_dtype(g, a, t, a->dtypes, "");
  if (a->variable >= 0) {
    const char** owner = &c->code_owners[a->variable];
    if (!*owner) {
      c->codes[a->variable] = code;
      *owner = a->name;
    } else if (c->codes[a->variable] != code) {
      return other_dtype(g, a, t, c->codes[a->variable], *owner);
    }
  }
  if (a->rank >= 0 && t->ndim != a->rank) return wrong_rank(g, a, t);
  if (a->like >= 0 || a->flags & TP_FLAG_ALIKE) {
    const int failed = check_like(c, a, position, t);
    if (failed) return failed;
  }
  if (a->dims) {
    const int failed = check_dims(g, a, t, c->sizes, c->owners);
    if (failed) return failed;
  }
  const Elements elements(t);
  if (!elements.dense) {
    if (a->flags & TP_FLAG_CONTIGUOUS) return not_contiguous(g, a, t);
    if ((a->flags & TP_FLAG_WRITES) && self_overlap(t)) return meets_itself(g, a, t);
  }
  if (g->device == kDLCUDA) {
    if (!c->first) c->first = t, c->first_name = g->args[position].name;
    if (t->device.device_id != c->first->device.device_id)
      return other_gpu(g, a, t, c->first, c->first_name);
  }
  if (view) fill_view(g, a, t, code, elements.count, view);
  add_span(c, a, t, elements);
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
    ++c->filled;
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
  bool numbers = false;
  for (int32_t i = 0; i < g->num_args; ++i) {
    const tp_guard_arg* a = &g->args[i];
    if (a->kind != TP_KIND_TENSOR) {
      numbers = numbers || a->kind == TP_KIND_FLOAT;
      const int failed = check_scalar(g, a, c->args[i]);
      if (failed) return failed;
      continue;
    }
    tp_view* view = views ? &views[tensors] : nullptr;
    ++tensors;
    if (a->flags & TP_FLAG_LIST) {
      const int failed = check_list(c, a, i, view);
      if (failed) return failed;
      continue;
    }
    const int failed = check_one(c, a, i, c->args[i], a->flags & TP_FLAG_OPTIONAL, view);
    if (failed) return failed;
    ++c->filled;
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
  for (int32_t i = 0; numbers && i < g->num_args; ++i) {
    const tp_guard_arg* a = &g->args[i];
    if (a->kind != TP_KIND_FLOAT) continue;
    int32_t dtype = -1;
    if (a->variable >= 0 && c->codes) dtype = c->codes[a->variable];
    if (a->variable < 0 && a->dtypes) dtype = __builtin_ctz(a->dtypes);
    if (dtype >= 0 && !holds(dtype, c->args[i])) return unheld(g, a, c->args[i], dtype);
  }
  return may_share(c) ? check_aliases(g, c->args) : 0;
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
  c.tensors = c.filled = 0;
  for (int32_t i = 0; i < g->num_symbols; ++i) c.owners[i] = nullptr;
  for (int32_t i = 0; i < g->num_variables; ++i) c.code_owners[i] = nullptr;
  const int failed = check_call(&c, views);
  if (failed && views) tp_rt_free_members(views, c.filled);
  return failed;
}

void tp_rt_free_members(tp_view* views, int32_t count) {
  for (int32_t i = 0; i < count; ++i)
    if (views[i].ndim == TP_MEMBERS) delete[] static_cast<tp_view*>(views[i].data);
}

}  // extern "C"

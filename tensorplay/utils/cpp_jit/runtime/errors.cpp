// Cold paths of every kernel library: exceptions, messages and the errors of calls that do not fit.
#include <cxxabi.h>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>
#include <typeinfo>

#include <tensorplay/error_stream.h>
#include <tensorplay/runtime.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

using tvm::ffi::Error;

namespace {

// Every error is an object that the engine's own library made: one made here would point to code of
// this kernel library, and an exception may outlive the library that raised it.
Error make_error(const char* kind, const std::string& message,
                 const TVMFFIByteArray* backtrace = nullptr) {
  TVMFFIByteArray kind_bytes{kind, std::strlen(kind)};
  TVMFFIByteArray message_bytes{message.data(), message.size()};
  TVMFFIByteArray none{"", 0};
  TVMFFIObjectHandle handle = nullptr;
  if (TVMFFIErrorCreate(&kind_bytes, &message_bytes, backtrace ? backtrace : &none, &handle) != 0) {
    throw std::bad_alloc();
  }
  using tvm::ffi::detail::ObjectUnsafe;
  return ObjectUnsafe::ObjectRefFromObjectPtr<Error>(
      ObjectUnsafe::ObjectPtrFromOwned<tvm::ffi::Object>(static_cast<TVMFFIObject*>(handle)));
}

int raise(const char* kind, const std::string& message) {
  tvm::ffi::detail::SetSafeCallRaised(make_error(kind, message));
  return -1;
}

[[noreturn]] void throw_here(const char* kind, const std::string& message, int line,
                             const char* function) {
  throw make_error(kind, message, TVMFFIBacktrace(__FILE__, line, function, 0));
}

std::string type_in_flight() {
  const std::type_info* type = abi::__cxa_current_exception_type();
  if (!type) return "unknown";
  int status = 0;
  char* demangled = abi::__cxa_demangle(type->name(), nullptr, nullptr, &status);
  std::string name = status == 0 && demangled ? demangled : type->name();
  std::free(demangled);
  return name;
}

std::string thrown_value() { return "kernel threw a value of type " + type_in_flight(); }

std::string type_text(const tp_rt_type& type) {
  std::string text;
  if (!type.name) {
    type.describe(&text);
    return text;
  }
  text = type.name;
  for (int32_t i = 0; i < type.inner_count; ++i) {
    text += (i ? ", " : "<") + type_text(type.inner[i]);
  }
  if (type.inner_count) text += '>';
  return text;
}

std::string call_text(const char* function, const tp_rt_type* signature, int32_t count) {
  std::ostringstream text;
  text << function << '(';
  for (int32_t i = 0; i < count; ++i) {
    text << (i ? ", " : "") << i << ": " << type_text(signature[i]);
  }
  text << ") -> " << type_text(signature[count]);
  return text.str();
}

bool accepts(uint8_t kind, int32_t type_index) {
  switch (kind) {
    case TP_RT_KIND_BOOL:
    case TP_RT_KIND_INT:
      return type_index == kTVMFFIInt || type_index == kTVMFFIBool;
    case TP_RT_KIND_REAL:
      return type_index == kTVMFFIFloat || type_index == kTVMFFIInt || type_index == kTVMFFIBool;
    case TP_RT_KIND_VIEW:
      return type_index == kTVMFFITensor || type_index == kTVMFFIDLTensorPtr;
    case TP_RT_KIND_TENSOR:
      return type_index == kTVMFFITensor;
    case TP_RT_KIND_POINTER:
      return type_index == kTVMFFIOpaquePtr || type_index == kTVMFFINone;
    case TP_RT_KIND_ENGINE:
      return true;
    case TP_RT_KIND_STRING:
      return type_index == kTVMFFISmallStr || type_index == kTVMFFIStr ||
             type_index == kTVMFFIRawStr || type_index == kTVMFFISmallBytes ||
             type_index == kTVMFFIBytes || type_index == kTVMFFIByteArrayPtr;
    default:
      return false;
  }
}

bool fits(const tp_rt_type& type, int64_t value) {
  if (type.bits == 64) return type.is_signed || value >= 0;
  int64_t limit = int64_t{1} << (type.bits - (type.is_signed ? 1 : 0));
  return value < limit && value >= (type.is_signed ? -limit : 0);
}

int wrong_count(const char* function, const tp_rt_type* signature, int32_t count, int32_t got) {
  return raise("TypeError", "Mismatched number of arguments when calling: `" +
                                call_text(function, signature, count) + "`. Expected " +
                                std::to_string(count) + " but got " + std::to_string(got) +
                                " arguments");
}

std::string wrong_type(const char* function, const tp_rt_type* signature, int32_t count,
                       int32_t index, const std::string& got) {
  return "Mismatched type on argument #" + std::to_string(index) + " when calling: `" +
         call_text(function, signature, count) + "`. Expected `" + type_text(signature[index]) +
         "` but got `" + got + "`";
}

std::string formatted(int32_t format, const void* value) {
  if (format == TP_RT_C_STRING) {
    const char* string = *static_cast<const char* const*>(value);
    return string ? string : "(null)";
  }
  std::ostringstream stream;
  switch (format) {
    case TP_RT_BOOL: stream << *static_cast<const bool*>(value); break;
    case TP_RT_CHAR: stream << *static_cast<const char*>(value); break;
    case TP_RT_INT64: stream << *static_cast<const int64_t*>(value); break;
    case TP_RT_UINT64: stream << *static_cast<const uint64_t*>(value); break;
    case TP_RT_FLOAT: stream << *static_cast<const float*>(value); break;
    case TP_RT_DOUBLE: stream << *static_cast<const double*>(value); break;
    case TP_RT_POINTER: stream << *static_cast<const void* const*>(value); break;
    case TP_RT_DTYPE: stream << *static_cast<const DLDataType*>(value); break;
    default: break;
  }
  return stream.str();
}

// Appends unless there is no memory for it.
void append(tp_rt_text* text, const char* piece, size_t size) {
  size_t needed = text->size + size + 1;
  if (needed > text->capacity) {
    void* grown = std::realloc(text->data, needed * 2);
    if (!grown) return;
    text->data = static_cast<char*>(grown);
    text->capacity = needed * 2;
  }
  std::memcpy(text->data + text->size, piece, size);
  text->size += size;
  text->data[text->size] = '\0';
}

int out_of_range(const char* function, const tp_rt_type& type, int32_t index, int64_t value) {
  std::string name = (type.is_signed ? "int" : "uint") + std::to_string(type.bits);
  return raise("ValueError", "[" + std::string(function) + "] argument #" + std::to_string(index) +
                                 ": expected an integer that fits " + name + ", got " +
                                 std::to_string(value));
}

}  // namespace

namespace tensorplay {
namespace jit {

ErrorStream::ErrorStream(const char* kind, const char* file, int line, const char* function)
    : kind_(kind), file_(file), function_(function), line_(line), stream_(new std::ostringstream) {}

ErrorStream::~ErrorStream() noexcept(false) {
  std::string message = stream_->str();
  delete stream_;
  throw make_error(kind_, message, TVMFFIBacktrace(file_, line_, function_, 0));
}

std::ostream& ErrorStream::stream() { return *stream_; }

}  // namespace jit
}  // namespace tensorplay

extern "C" {

int tp_rt_raise_current() {
  try {
    throw;
  } catch (const Error& error) {
    tvm::ffi::detail::SetSafeCallRaised(error);
    return -1;
  } catch (const std::out_of_range& error) {
    return raise("IndexError", error.what());
  } catch (const std::invalid_argument& error) {
    return raise("ValueError", error.what());
  } catch (const std::domain_error& error) {
    return raise("ValueError", error.what());
  } catch (const std::length_error& error) {
    return raise("ValueError", error.what());
  } catch (const std::bad_alloc&) {
    return raise("MemoryError", "kernel ran out of memory (std::bad_alloc)");
  } catch (const std::bad_cast& error) {
    return raise("TypeError", error.what());
  } catch (const std::exception& error) {
    return raise("RuntimeError", error.what());
  } catch (const char* text) {
    return raise("RuntimeError", thrown_value() + ": " + (text ? text : "(null)"));
  } catch (const std::string& text) {
    return raise("RuntimeError", thrown_value() + ": " + text);
  } catch (...) {
    return raise("RuntimeError", thrown_value());
  }
}

int tp_rt_raise(const char* kind, const char* message) { return raise(kind, message); }

void tp_rt_throw(const char* kind, const char* message) {
  throw make_error(kind, message);
}

void tp_rt_throw_raised() { throw tvm::ffi::detail::MoveFromSafeCallRaised(); }

void tp_rt_throw_text(const char* kind, tp_rt_text* text, const char* file, int line,
                      const char* function) {
  std::string message(text->data ? text->data : "", text->size);
  tp_rt_text_free(text);
  throw make_error(kind, message, TVMFFIBacktrace(file, line, function, 0));
}

void tp_rt_text_append(tp_rt_text* text, int32_t format, const void* value) noexcept {
  try {
    std::string piece = formatted(format, value);
    append(text, piece.data(), piece.size());
  } catch (const std::bad_alloc&) {
    // A message is being made of another error, which is worth more than its whole text.
  }
}

tp_rt_text* tp_rt_text_keep(tp_rt_text* text) noexcept {
  // Never null, since null says that the comparison held; this one is not freed.
  static tp_rt_text without_memory{nullptr, 0, 0};
  auto* kept = new (std::nothrow) tp_rt_text(*text);
  if (kept) return kept;
  tp_rt_text_free(text);
  return &without_memory;
}

void tp_rt_text_move(tp_rt_text* text, tp_rt_text* kept) noexcept {
  if (!kept->data) return;
  append(text, kept->data, kept->size);
  tp_rt_text_free(kept);
  delete kept;
}

void tp_rt_text_free(tp_rt_text* text) noexcept {
  std::free(text->data);
  *text = tp_rt_text{nullptr, 0, 0};
}

void tp_rt_bad_dimension(int64_t index, int64_t ndim) {
  throw_here("IndexError",
             "Index " + std::to_string(index) + " out of bounds for tensor with " +
                 std::to_string(ndim) + " dimensions",
             __LINE__, "TensorView::size");
}

void tp_rt_bad_shape_index(int64_t index, int64_t size) {
  throw_here("IndexError",
             "indexing " + std::to_string(index) + " on a Shape of size " + std::to_string(size),
             __LINE__, "ShapeView::at");
}

void tp_rt_no_strides() {
  throw_here("InternalError",
             "Check failed: (tensor_.strides != nullptr || tensor_.ndim == 0) is false: ", __LINE__,
             "TensorView::strides");
}

void tp_rt_no_tensor(const char* condition) {
  throw_here("InternalError", "Check failed: " + std::string(condition) + " is false: ", __LINE__,
             "TensorView::TensorView");
}

int tp_rt_check_call(const char* function, const tp_rt_type* signature, int32_t count,
                     const TVMFFIAny* args, int32_t got) {
  if (__builtin_expect(got != count, 0)) return wrong_count(function, signature, count, got);
  for (int32_t i = 0; i < count; ++i) {
    if (__builtin_expect(!accepts(signature[i].kind, args[i].type_index), 0)) {
      return raise("TypeError", wrong_type(function, signature, count, i,
                                           tvm::ffi::TypeIndexToTypeKey(args[i].type_index)));
    }
    if (signature[i].kind == TP_RT_KIND_INT &&
        __builtin_expect(!fits(signature[i], args[i].v_int64), 0)) {
      return out_of_range(function, signature[i], i, args[i].v_int64);
    }
  }
  return 0;
}

void tp_rt_throw_mismatch(const char* function, const tp_rt_type* signature, int32_t count,
                          int32_t index, const TVMFFIAny* value,
                          void (*describe)(const TVMFFIAny*, void*)) {
  std::string got;
  describe(value, &got);
  throw_here("TypeError", wrong_type(function, signature, count, index, got), __LINE__, function);
}

}  // extern "C"

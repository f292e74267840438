// Cold paths of every kernel library: exceptions, messages and the errors of calls that do not fit.
#include <cxxabi.h>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
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

// The length of the character of UTF-8 that `text` has at `at`, or 0 where it has none.
size_t character_at(const char* text, size_t size, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(at);
  if (first < 0x80) return 1;
  const size_t length = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
  if (length == 0 || size - at < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xc0) != 0x80) return 0;
  }
  const unsigned second = byte(at + 1);  // no longer than needed, no surrogates, none beyond the last
  const bool wrong = (first == 0xe0 && second < 0xa0) || (first == 0xed && second >= 0xa0) ||
                     (first == 0xf0 && second < 0x90) || (first == 0xf4 && second >= 0x90);
  return wrong ? 0 : length;
}

// A message as Python can decode it: U+FFFD stands for each byte that is part of no character.
std::string decodable(const char* text, size_t size) {
  std::string made;
  made.reserve(size);
  for (size_t at = 0; at < size;) {
    const size_t length = character_at(text, size, at);
    if (length == 0) {
      made += "\xef\xbf\xbd";
      ++at;
    } else {
      made.append(text + at, length);
      at += length;
    }
  }
  return made;
}

// Every error is an object that the engine's own library made: one made here would point to code of
// this kernel library, and an exception may outlive the library that raised it.
Error make_error(const char* kind, const std::string& said,
                 const TVMFFIByteArray* backtrace = nullptr) {
  const std::string message = decodable(said.data(), said.size());
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

int out_of_range(const char* function, const tp_rt_type& type, int32_t index, int64_t value) {
  std::string name = (type.is_signed ? "int" : "uint") + std::to_string(type.bits);
  return raise("ValueError", "[" + std::string(function) + "] argument #" + std::to_string(index) +
                                 ": expected an integer that fits " + name + ", got " +
                                 std::to_string(value));
}

}  // namespace

struct tensorplay::jit::Error {
  const char* kind;
  const char* file;
  int line;
  const char* function;
  std::string message;
};

namespace {

// Without memory for it, what there is of the message is worth more than a second error.
template <typename T>
void append(tensorplay::jit::Error* error, const T& value) noexcept {
  try {
    std::ostringstream stream;
    stream << value;
    error->message += stream.str();
  } catch (const std::bad_alloc&) {
  }
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

tensorplay::jit::Error* tp_rt_error_new(const char* kind, const char* file, int line, const char* function) {
  return new tensorplay::jit::Error{kind, file, line, function, {}};
}

tensorplay::jit::Error* tp_rt_error_sides() {
  return new tensorplay::jit::Error{nullptr, nullptr, 0, nullptr, " ("};
}

tensorplay::jit::Error* tp_rt_error_sides_int64(int64_t x, int64_t y) {
  std::string text = " (" + std::to_string(x) + " vs. " + std::to_string(y);
  return new tensorplay::jit::Error{nullptr, nullptr, 0, nullptr, std::move(text)};
}

tensorplay::jit::Error* tp_rt_error_check(const char* kind, const char* file, int line, const char* function,
                               const char* condition, tensorplay::jit::Error* sides) {
  std::string message = "Check failed: " + std::string(condition);
  if (sides) message += sides->message + ") ";
  message += ": ";
  delete sides;
  return new tensorplay::jit::Error{kind, file, line, function, std::move(message)};
}

void tp_rt_error_char(tensorplay::jit::Error* error, char value) noexcept { append(error, value); }
void tp_rt_error_int64(tensorplay::jit::Error* error, int64_t value) noexcept { append(error, value); }
void tp_rt_error_uint64(tensorplay::jit::Error* error, uint64_t value) noexcept { append(error, value); }
void tp_rt_error_float(tensorplay::jit::Error* error, float value) noexcept { append(error, value); }
void tp_rt_error_double(tensorplay::jit::Error* error, double value) noexcept { append(error, value); }
void tp_rt_error_string(tensorplay::jit::Error* error, const char* value) noexcept {
  append(error, value ? value : "(null)");
}
void tp_rt_error_pointer(tensorplay::jit::Error* error, const void* value) noexcept { append(error, value); }
void tp_rt_error_dtype(tensorplay::jit::Error* error, DLDataType value) noexcept { append(error, value); }

void tp_rt_error_throw(tensorplay::jit::Error* error) {
  std::unique_ptr<tensorplay::jit::Error> held(error);
  throw make_error(held->kind, held->message,
                   TVMFFIBacktrace(held->file, held->line, held->function, 0));
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

int tp_rt_call(const char* function, const tp_rt_type* signature, int32_t count,
               const TVMFFIAny* args, int32_t got, TVMFFIAny* result,
               void (*body)(void (*)(), const char*, const TVMFFIAny*, TVMFFIAny*),
               void (*target)()) {
  if (tp_rt_check_call(function, signature, count, args, got) != 0) return -1;
  try {
    body(target, function, args, result);
    return 0;
  } catch (...) {
    return tp_rt_raise_current();
  }
}

TVMFFIObject* tp_rt_allocate(int (*allocate)(DLTensor*, TVMFFIObjectHandle*), const int64_t* shape,
                             size_t ndim, DLDataType dtype, DLDevice device) {
  DLTensor prototype{};
  prototype.device = device;
  prototype.ndim = static_cast<int32_t>(ndim);
  prototype.dtype = dtype;
  prototype.shape = const_cast<int64_t*>(shape);
  TVMFFIObjectHandle handle = nullptr;
  if (allocate(&prototype, &handle) != 0) tp_rt_throw_raised();
  return static_cast<TVMFFIObject*>(handle);
}

bool tp_rt_is_contiguous(const DLTensor* tensor) noexcept {
  if (!tensor->strides) return true;
  for (int32_t i = 0; i < tensor->ndim; ++i) {
    if (tensor->shape[i] == 0) return true;
  }
  int64_t expected = 1;
  for (int32_t i = tensor->ndim - 1; i >= 0; --i) {
    if (tensor->shape[i] == 1) continue;
    if (tensor->strides[i] != expected) return false;
    expected *= tensor->shape[i];
  }
  return true;
}

DLTensor* tp_rt_dl_tensor(const TVMFFIAny* value) {
  if (value->type_index == kTVMFFITensor) return TVMFFITensorGetDLTensorPtr(value->v_obj);
  if (!value->v_ptr) tp_rt_no_tensor("(tensor != nullptr)");
  return static_cast<DLTensor*>(value->v_ptr);
}

TVMFFIByteArray tp_rt_string(const TVMFFIAny* value) {
  switch (value->type_index) {
    case kTVMFFIRawStr:
      return {value->v_c_str, std::strlen(value->v_c_str)};
    case kTVMFFISmallStr:
    case kTVMFFISmallBytes:
      return {value->v_bytes, value->small_str_len};
    case kTVMFFIByteArrayPtr:
      return *static_cast<const TVMFFIByteArray*>(value->v_ptr);
    default:
      return *TVMFFIBytesGetByteArrayPtr(value->v_obj);
  }
}

void tp_rt_throw_mismatch(const char* function, const tp_rt_type* signature, int32_t count,
                          int32_t index, const TVMFFIAny* value,
                          void (*describe)(const TVMFFIAny*, void*)) {
  std::string got;
  describe(value, &got);
  throw_here("TypeError", wrong_type(function, signature, count, index, got), __LINE__, function);
}

}  // extern "C"

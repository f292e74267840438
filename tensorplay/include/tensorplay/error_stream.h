// Throwing through the run-time library: what `TVM_FFI_THROW` becomes in the full headers.
//
// The engine's own builder is inline; each unit that can throw compiles it, the error class and a
// string stream again. Here a throw is three calls, and the message is still a `std::ostream`.
#pragma once
#pragma GCC system_header
#include <iosfwd>
#include <tensorplay/runtime.h>

namespace tensorplay {
namespace jit {

class ErrorStream {
 public:
  TP_RT_COLD ErrorStream(const char* kind, const char* file, int line, const char* function);
  ErrorStream(const ErrorStream&) = delete;
  ErrorStream& operator=(const ErrorStream&) = delete;
  // Throws the engine's error with what was written.
  [[noreturn]] TP_RT_COLD ~ErrorStream() noexcept(false);
  TP_RT_COLD std::ostream& stream();

 private:
  const char* kind_;
  const char* file_;
  const char* function_;
  int line_;
  std::ostringstream* stream_;
};

}  // namespace jit
}  // namespace tensorplay

// The exceptions that functions of include/overlace throw.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "overlace/errc_pod.h"

namespace overlace {

#pragma GCC visibility push(default)  // exported by liboverlace.so

/// The base of all exceptions of the library. `what()` names the argument, the value got and the value wanted.
class Error : public std::runtime_error {
 public:
  Error(Errc code, const std::string& message) : std::runtime_error(message), code_(code) {}
  Errc code() const noexcept { return code_; }

 private:
  Errc code_;
};

// There is one class per row of docs/reference/errors.md.
struct InvalidArgument : Error {
  using Error::Error;
};
struct ScheduleError : InvalidArgument {
  using InvalidArgument::InvalidArgument;
};
struct PlanMismatch : InvalidArgument {
  using InvalidArgument::InvalidArgument;
};
struct Unsupported : Error {
  using Error::Error;
};
struct Timeout : Error {
  using Error::Error;
};
struct PeerLost : Error {
  using Error::Error;
};
struct Desync : Error {
  using Error::Error;
};
struct IoError : Error {
  using Error::Error;
};
struct CudaError : Error {
  using Error::Error;
};
struct EngineError : Error {
  using Error::Error;
};
struct OutOfMemory : Error {
  using Error::Error;
};
struct NonFinite : Error {
  using Error::Error;
};
struct Internal : Error {
  using Error::Error;
};

/// Returns the name of a code, as in JSON and messages: "invalid_argument".
std::string_view errc_name(Errc code);

/// Returns the exit status of a program that ends with this error (docs/reference/errors.md).
int exit_code(Errc code);

/// Throws the class that belongs to `code`. Precondition: code != ok.
[[noreturn]] void throw_error(Errc code, const std::string& message);

#pragma GCC visibility pop

}  // namespace overlace

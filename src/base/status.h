// Errors inside the library: a code and a message, or a value. include/overlace turns them into exceptions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "overlace/errc_pod.h"
#include "overlace/error.h"
#include "src/base/format.h"

namespace overlace::base {

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Errc code, std::string message) : code_(code), message_(std::move(message)) {}
  static Status success() { return {}; }
  bool ok() const { return code_ == Errc::ok; }
  Errc code() const { return code_; }
  const std::string& message() const { return message_; }
  /// Throws the exception of the code unless ok.
  void or_throw() const {
    if (!ok()) throw_error(code_, message_);
  }

 private:
  Errc code_ = Errc::ok;
  std::string message_;
};

/// error(Errc::io, "{}: {}", path, why)
template <class... Args>
Status error(Errc code, std::string_view text, const Args&... args) {
  return Status(code, format(text, args...));
}
template <class... Args>
Status invalid_argument(std::string_view text, const Args&... args) {
  return error(Errc::invalid_argument, text, args...);
}

/// The value of an exception caught at a boundary (Error, bad_alloc, other).
Status status_of_current_exception();

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)
  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & { return check(), *value_; }
  const T& value() const& { return check(), *value_; }
  T&& value() && { return check(), std::move(*value_); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  void check() const {
    if (!value_) status_.or_throw();
  }
  std::optional<T> value_;
  Status status_;
};

[[noreturn]] void assert_failed(const char* condition, const char* file, int line);

}  // namespace overlace::base

/// A bug of ours if it fails: throws Internal.
#define OVERLACE_ASSERT(condition) \
  ((condition) ? static_cast<void>(0) : ::overlace::base::assert_failed(#condition, __FILE__, __LINE__))
/// Leaves the function with the status unless it is ok.
#define OVERLACE_TRY(expression)                                                        \
  do {                                                                                  \
    if (::overlace::base::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)

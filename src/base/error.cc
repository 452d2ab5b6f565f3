#include "overlace/error.h"

#include "src/base/status.h"

namespace overlace {
namespace {

/// One row per exception class: which codes it has and the exit status of a program that ends with it.
enum class Class {
  invalid_argument,
  schedule_error,
  plan_mismatch,
  unsupported,
  timeout,
  peer_lost,
  desync,
  io_error,
  cuda_error,
  engine_error,
  out_of_memory,
  non_finite,
  internal
};

Class class_of(Errc code) {
  switch (code) {
    case Errc::invalid_argument:
    case Errc::layout_mismatch:
    case Errc::closed:
    case Errc::forked:
    case Errc::capture:
      return Class::invalid_argument;
    case Errc::bad_schedule:
      return Class::schedule_error;
    case Errc::plan_mismatch:
      return Class::plan_mismatch;
    case Errc::not_supported:
    case Errc::co_residency:
    case Errc::version_mismatch:
      return Class::unsupported;
    case Errc::timeout:
      return Class::timeout;
    case Errc::peer_lost:
    case Errc::aborted:
    case Errc::bootstrap:
      return Class::peer_lost;
    case Errc::desync:
      return Class::desync;
    case Errc::io:
    case Errc::corrupt:
    case Errc::stale:
      return Class::io_error;
    case Errc::cuda:
      return Class::cuda_error;
    case Errc::engine:
      return Class::engine_error;
    case Errc::heap_exhausted:
    case Errc::out_of_memory:
      return Class::out_of_memory;
    case Errc::non_finite:
      return Class::non_finite;
    case Errc::ok:
    case Errc::internal:
      break;
  }
  return Class::internal;
}

}  // namespace

std::string_view errc_name(Errc code) {
  static constexpr std::string_view kNames[] = {"ok",
                                                "invalid_argument",
                                                "layout_mismatch",
                                                "closed",
                                                "forked",
                                                "capture",
                                                "bad_schedule",
                                                "plan_mismatch",
                                                "not_supported",
                                                "co_residency",
                                                "version_mismatch",
                                                "timeout",
                                                "peer_lost",
                                                "aborted",
                                                "bootstrap",
                                                "desync",
                                                "io",
                                                "corrupt",
                                                "stale",
                                                "cuda",
                                                "engine",
                                                "heap_exhausted",
                                                "out_of_memory",
                                                "non_finite",
                                                "internal"};
  static_assert(std::size(kNames) == static_cast<size_t>(Errc::internal) + 1);
  const auto index = static_cast<size_t>(code);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

int exit_code(Errc code) {
  if (code == Errc::ok) return 0;
  switch (class_of(code)) {
    case Class::invalid_argument:
    case Class::schedule_error:
    case Class::plan_mismatch:
      return 2;
    case Class::unsupported:
      return 3;
    case Class::timeout:
    case Class::peer_lost:
    case Class::desync:
      return 4;
    case Class::io_error:
      return 5;
    case Class::cuda_error:
    case Class::engine_error:
      return 6;
    case Class::out_of_memory:
      return 7;
    case Class::non_finite:
      return 1;
    case Class::internal:
      break;
  }
  return 70;
}

void throw_error(Errc code, const std::string& message) {
  switch (class_of(code)) {
    case Class::invalid_argument:
      throw InvalidArgument(code, message);
    case Class::schedule_error:
      throw ScheduleError(code, message);
    case Class::plan_mismatch:
      throw PlanMismatch(code, message);
    case Class::unsupported:
      throw Unsupported(code, message);
    case Class::timeout:
      throw Timeout(code, message);
    case Class::peer_lost:
      throw PeerLost(code, message);
    case Class::desync:
      throw Desync(code, message);
    case Class::io_error:
      throw IoError(code, message);
    case Class::cuda_error:
      throw CudaError(code, message);
    case Class::engine_error:
      throw EngineError(code, message);
    case Class::out_of_memory:
      throw OutOfMemory(code, message);
    case Class::non_finite:
      throw NonFinite(code, message);
    case Class::internal:
      break;
  }
  throw Internal(Errc::internal, message);
}

}  // namespace overlace
